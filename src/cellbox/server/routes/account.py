"""The caller and its API keys. An admin sees and makes those of every owner."""

from __future__ import annotations

from cellbox import errors
from cellbox.protocol import operations
from cellbox.protocol.account import CreatedToken, CreateToken, Me, TokenList
from cellbox.server.call import Call
from cellbox.server.routing import Handlers

handlers = Handlers()


@handlers.handles(operations.get_me)
async def get_me(call: Call[None]) -> Me:
    caller = call.caller
    return Me(user_id=caller.owner, auth_method=caller.method, is_admin=caller.is_admin)


@handlers.handles(operations.list_tokens)
async def list_tokens(call: Call[None]) -> TokenList:
    return TokenList(items=call.control.keys.list(None if call.caller.is_admin else call.caller.owner))


@handlers.handles(operations.create_token)
async def create_token(call: Call[CreateToken]) -> CreatedToken:
    body, caller = call.body, call.caller
    owner = body.owner or caller.owner
    if not caller.is_admin and (owner != caller.owner or body.is_admin):
        raise errors.PermissionDeniedError("only an admin key can make keys for other owners or for admins")
    return await call.control.keys.create(
        body.label, owner=owner, is_admin=body.is_admin, expires_in_days=body.expires_in_days
    )


@handlers.handles(operations.delete_token)
async def delete_token(call: Call[None]) -> None:
    owner = None if call.caller.is_admin else call.caller.owner
    await call.control.keys.revoke(call.parameters["prefix"], owner=owner)
