-- Times are seconds since the epoch.

CREATE TABLE snapshots (
    id              TEXT PRIMARY KEY,
    owner           TEXT NOT NULL,
    sandbox_id      TEXT NOT NULL,
    name            TEXT NOT NULL,
    template        TEXT NOT NULL,
    template_digest TEXT NOT NULL,
    size_bytes      INTEGER NOT NULL,
    sha256          TEXT NOT NULL,
    cpu             REAL NOT NULL,
    memory_mb       INTEGER NOT NULL,
    disk_mb         INTEGER NOT NULL,
    created_at      REAL NOT NULL,
    expires_at      REAL NOT NULL
) STRICT, WITHOUT ROWID;

ALTER TABLE sandboxes ADD COLUMN rest BLOB NOT NULL DEFAULT x'';  -- a JSON object while it is hibernated
