-- Times are seconds since the epoch.

CREATE TABLE installation (
    name  TEXT PRIMARY KEY,
    value TEXT NOT NULL
) STRICT, WITHOUT ROWID;

INSERT INTO installation VALUES ('id', lower(hex(randomblob(8))));

CREATE TABLE keys (
    prefix       TEXT PRIMARY KEY,
    digest       BLOB NOT NULL,
    owner        TEXT NOT NULL,
    label        TEXT NOT NULL,
    is_admin     INTEGER NOT NULL,
    created_at   REAL NOT NULL,
    expires_at   REAL,
    last_used_at REAL
) STRICT, WITHOUT ROWID;

CREATE TABLE sandboxes (
    id              TEXT PRIMARY KEY,
    owner           TEXT NOT NULL,
    template        TEXT NOT NULL,
    template_digest TEXT NOT NULL,
    status          TEXT NOT NULL,
    request         BLOB NOT NULL,
    created_at      REAL NOT NULL,
    expires_at      REAL,
    persistent      INTEGER NOT NULL,
    metadata        TEXT NOT NULL,  -- a JSON object
    machine_id      TEXT NOT NULL
) STRICT, WITHOUT ROWID;
