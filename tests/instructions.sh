#!/bin/bash
# Counts the instructions of one operation of a Go benchmark: a figure that no load on the machine
# changes. It runs it under valgrind, for N and for 3 N operations, with one processor and without
# garbage collection; set-up and the start of the runtime cancel out. With a commit it counts that
# one, too, and lists the functions that make the difference.
#
#	tests/instructions.sh ./link/rdma/internal/delack 'BenchmarkCoalescer$/held' [COMMIT]
#
# N=1000 operations and FUNCTIONS=15 lines of functions are the defaults. A benchmark of one
# goroutine gives the same count again to 0.1 to 3 %: maps and hashes have a seed of each process,
# and the turns that the scheduler takes count, too. Repeat it before you believe in less.
set -euo pipefail
"$(dirname "$0")/deps.sh" instructions
package=$1 pattern=$2 commit=${3-}
N=${N-1000} FUNCTIONS=${FUNCTIONS-15}

tree=$PWD tmp=$(mktemp -d)
trap '[ ! -d "$tmp/tree" ] || git worktree remove --force "$tmp/tree"; rm -rf "$tmp"' EXIT

# build makes the test program of the tree in directory $1 into file $2.
build() { (cd "$1" && CGO_ENABLED=0 go test -c -o "$2" "$package"); }

# count runs $3 operations of the benchmarks of program $1 in tree $2. File $4 gets the count, and
# a line for each function.
count() {
	(cd "$2/$package" && GOMAXPROCS=1 GOGC=off GODEBUG=asyncpreemptoff=1,cpu.rdtscp=off valgrind -q \
		--tool=cachegrind --cache-sim=no --cachegrind-out-file="$tmp/out" "$1" -test.run '^$' \
		-test.bench "$pattern" -test.benchtime "$3x" -test.cpu 1 >"$tmp/log" 2>&1) &&
		grep -q ns/op "$tmp/log" || { cat "$tmp/log" >&2; exit 1; }
	awk '/^fn=/ { f = substr($0, 4) } /^[0-9]/ { n[f] += $2; all += $2 }
		END { print all, "all"; for (f in n) print n[f], f }' "$tmp/out" >"$4"
}

# each prints instructions per operation of each function: those of tree $1, whose program is $2.
each() {
	count "$2" "$1" "$N" "$tmp/one"
	count "$2" "$1" $((3 * N)) "$tmp/three"
	awk -v n=$((2 * N)) 'NR == FNR { f = $1; $1 = ""; had[$0] = f; next }
		{ f = $1; $1 = ""; printf "%.1f%s\n", (f - had[$0]) / n, $0 }' "$tmp/one" "$tmp/three"
}

build "$tree" "$tmp/now.test"
each "$tree" "$tmp/now.test" >"$tmp/now"
if [ -z "$commit" ]; then
	echo "instructions per operation"
	sort -k1,1nr "$tmp/now" | head -n $((FUNCTIONS + 1))
	exit
fi
git worktree add -q --detach "$tmp/tree" "$commit"
build "$tmp/tree" "$tmp/before.test"
each "$tmp/tree" "$tmp/before.test" >"$tmp/before"
printf '%12s %12s %12s\n' "$(git rev-parse --short "$commit")" now more
awk 'NR == FNR { n = $1; $1 = ""; before[$0] = n; next }
	{ n = $1; $1 = ""; now[$0] = n; before[$0] += 0 }
	END { for (f in before) { d = now[f] - before[f]
		printf "%12.1f %12.1f %12.1f%s\n", before[f], now[f], d, f
	} }' "$tmp/before" "$tmp/now" | awk '{ d = $3 < 0 ? -$3 : $3; if ($4 == "all") d = 1e18
	print d "\t" $0 }' | sort -k1,1gr | cut -f 2- | head -n $((FUNCTIONS + 1))
