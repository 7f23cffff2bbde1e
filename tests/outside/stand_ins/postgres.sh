# What the official image does with its variables, as far as the compose file uses it.
set -eu
data=/var/lib/postgresql/data
as_postgres() { setpriv --reuid postgres --regid postgres --init-groups "$@"; }
if [ ! -s "$data/PG_VERSION" ]; then
    chown postgres "$data"
    cp "$POSTGRES_PASSWORD_FILE" /tmp/password && chown postgres /tmp/password
    as_postgres initdb --encoding=UTF8 --username="$POSTGRES_USER" --pwfile=/tmp/password --auth-host=scram-sha-256 -D "$data"
    rm /tmp/password
    echo 'host all all all scram-sha-256' >> "$data/pg_hba.conf"
    as_postgres pg_ctl -D "$data" -o "-c listen_addresses=" -w start
    as_postgres createdb --username="$POSTGRES_USER" "$POSTGRES_DB"
    for script in /docker-entrypoint-initdb.d/*.sql; do
        as_postgres psql --username="$POSTGRES_USER" --dbname="$POSTGRES_DB" --set=ON_ERROR_STOP=1 < "$script"
    done
    as_postgres pg_ctl -D "$data" -w stop
fi
exec setpriv --reuid postgres --regid postgres --init-groups postgres -D "$data" -c 'listen_addresses=*'
