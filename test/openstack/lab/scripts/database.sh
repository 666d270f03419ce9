# Sourced by up.sh: starts MariaDB with the tables of Keystone, Neutron and Octavia. The
# migrated, empty tables are kept in the cache and copied for the next laboratory.
# shellcheck shell=bash disable=SC2154 # from common.sh
template=$cache/database

start_database() {
	alive database || background database mariadbd --defaults-file="$etc/my.cnf"
	release python3 "$scripts/dbtool.py" "$run/mysql.sock" "$@" || tail_die "$log/mariadb.log" "MariaDB does not start"
}

stop_database() {
	local pid rest
	read -r pid rest <"$run/database.id"
	kill "$pid"
	while alive database; do sleep 0.05; done
	rm -f "$run/database.id"
}

# migrate NAME MODULE:FUNCTION ARGUMENT... runs a service's own tool.
migrate() {
	local name=$1
	shift
	release python3 "$scripts/launch.py" script "$@" >"$log/migrate-$name.log" 2>&1 || {
		tail -n 5 "$log/migrate-$name.log" >&2
		return 1
	}
}

# All variants get all tables, so that one template serves them.
make_database() {
	rm -rf "$state/mysql"
	mkdir -p "$state/mysql"
	release mariadb-install-db --no-defaults --force --basedir="$tree/usr" --datadir="$state/mysql" --user=root \
		--auth-root-authentication-method=normal --skip-test-db --innodb-log-file-size=32M >"$log/mariadb-install.log" 2>&1 ||
		tail_die "$log/mariadb-install.log" "mariadb-install-db fails"
	start_database 'create database keystone' 'create database octavia' 'create database neutron'
	local name neutron_migration
	for name in neutron keystone octavia; do
		printf '[database]\nconnection = %s\n' "$(database_url $name)" >"$etc/$name/migrate.conf"
	done
	migrate neutron neutron.db.migration.cli:main --config-file "$etc/neutron/neutron.conf" upgrade heads &
	neutron_migration=$!
	if ! { migrate keystone keystone.cmd.manage:main --config-file "$etc/keystone/migrate.conf" db_sync &&
		migrate octavia octavia.db.migration.cli:main --config-file "$etc/octavia/migrate.conf" upgrade head; }; then
		wait $neutron_migration || true
		die "the migration of the database fails"
	fi
	wait $neutron_migration || die "the migration of Neutron's database fails"
	stop_database
}

# The lock lets another laboratory wait for the template and not make a second one.
exec 9>"$cache/lock"
flock 9
if [ ! -d "$template" ]; then
	step "making the tables of Keystone, Neutron and Octavia"
	make_database
	rm -rf "$template.new"
	cp -a "$state/mysql" "$template.new"
	mv "$template.new" "$template"
fi
flock -u 9
exec 9>&-
[ -d "$state/mysql" ] || cp -a "$template" "$state/mysql"
start_database
