#!/bin/bash
# Runs the tests of packages many times beside four busy loops, one package after the other: what
# fails only beside load is a fault until it is explained. soak.sh COUNT PACKAGE...
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
for package in $(go list "$@"); do
	CGO_ENABLED=0 timeout 2h go test -count="$count" -cpu 1,2 -timeout 2h "$package" || status=1
done
exit $status
