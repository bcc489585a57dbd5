#!/bin/bash
# Runs every fuzz target of the module: fuzz.sh TIME [PARSERTIME]
#   TIME        for each target, such as 3s
#   PARSERTIME  for those that read what strangers send or users write: leases, router
#               advertisements, zones, parameters of iperf3, addresses, received segments, lists of
#               the filter
#   FUZZSEED    in the environment: the seed of all mutations. Without it there is a new one, and
#               what earlier runs have found interesting is used, too. It is in the log: the same seed
#               tries the same inputs, as far as the time goes.
# A failing input is printed and stays in the package's testdata.
set -u
cd "$(dirname "$0")/.."
each=${1:?fuzz.sh TIME [PARSERTIME]}
parser=${2:-$each}
parsers='Lease|ParseFilter|RouterAdvert|ParseAddress|ResolvConf|Zone|Answer|Params|Receive|ACK|Resend'
known=$(go env GOCACHE)/fuzz
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
[ -z "${FUZZSEED-}" ] || known=$out/known
seed=${FUZZSEED:-$RANDOM$RANDOM}
echo "FUZZSEED=$seed"

status=0 ran=0
targets=$(grep -rHoE --include='*_test.go' '^func Fuzz[A-Za-z0-9_]*' . | sed 's|/[^/]*:func | |' |
	awk -v p="Fuzz.*($parsers)" '{print ($2 ~ p ? 0 : 1), $0}' | sort)
for dir in $(awk '{print $2}' <<<"$targets" | sort -u); do # one binary for all targets of a package
	(cd "$dir" && go test -c -fuzz . -o "$out/$dir/fuzz.test" .) || status=1
done
built=$SECONDS
while read -r other dir name; do
	[ -x "$out/$dir/fuzz.test" ] || continue
	time=$parser
	[ "$other" = 0 ] || time=$each
	# It ends by SIGINT: -test.fuzztime with a time may fail with "context deadline exceeded" when
	# nothing was found (golang/go#75804: the deadline of the workers is set after the coordinator's).
	(cd "$dir" && GODEBUG=fuzzseed=$seed timeout --foreground --preserve-status -s INT "$time" \
		"$out/$dir/fuzz.test" -test.run '^$' -test.fuzz "^$name\$" \
		-test.fuzzminimizetime 1s -test.fuzzcachedir "$known/$dir" \
		-test.parallel 1 -test.timeout 10m) >"$out/log" 2>&1 || {
		status=1
		cat "$out/log"
		sed -n 's/.*Failing input written to //p' "$out/log" | while read -r f; do cat "$dir/$f"; done
	}
	ran=$((ran + 1))
	echo "$dir $name, $time: $(grep -o 'execs: [0-9]*' "$out/log" | tail -1)"
done <<<"$targets"
echo "$ran of $(wc -l <<<"$targets") targets in $((SECONDS - built)) s, built in $built s"
[ "$ran" = "$(wc -l <<<"$targets")" ] || status=1
exit $status
