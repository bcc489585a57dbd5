#!/bin/bash
# Runs the tests of packages many times beside four busy loops, one package after the other: what
# fails only beside load is a fault until it is explained. ./... is all packages of all modules.
# soak.sh COUNT PACKAGE...
set -uo pipefail
count=$1
shift
busy=()
trap 'kill "${busy[@]}" 2>/dev/null' EXIT
for _ in 1 2 3 4; do
	(while :; do :; done) &
	busy+=($!)
done
status=0
# soak runs the packages of the module in a directory.
soak() {
	local dir=$1 package
	shift
	for package in $(go -C "$dir" list "$@"); do
		CGO_ENABLED=0 timeout 2h go -C "$dir" test -count="$count" -cpu 1,2 -timeout 2h "$package" || status=1
	done
}
soak . "$@"
if [ "$*" = ./... ]; then
	for module in $(git ls-files '*/go.mod'); do
		soak "$(dirname "$module")" ./...
	done
fi
exit $status
