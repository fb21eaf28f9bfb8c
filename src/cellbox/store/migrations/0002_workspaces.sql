CREATE TABLE workspaces (
    id         TEXT PRIMARY KEY,
    owner      TEXT NOT NULL,
    name       TEXT NOT NULL,
    size_mb    INTEGER NOT NULL,
    created_at REAL NOT NULL,
    UNIQUE (owner, name)
) STRICT, WITHOUT ROWID;
