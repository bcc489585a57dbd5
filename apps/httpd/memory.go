package httpd

import (
	"math"
	"os"
	"runtime/debug"
	"strconv"
	"strings"
)

// Limits of Config.MaxConns when it is not set.
const (
	connMemory = 1 << 20 // bytes in the send buffer of a peer that reads nothing
	fewConns   = 256
	manyConns  = 1 << 16
)

// connsForMemory is the number of connections that fit into half of the memory this process may
// use.
func connsForMemory() int {
	meminfo, _ := os.ReadFile("/proc/meminfo") // without the file there is no limit from it
	cgroup, _ := os.ReadFile("/sys/fs/cgroup/memory.max")
	memory := min(totalOf(string(meminfo)), bytesOf(string(cgroup)), debug.SetMemoryLimit(-1))
	return int(min(max(memory/2/connMemory, fewConns), manyConns))
}

// totalOf is MemTotal of /proc/meminfo (proc(5)) in bytes.
func totalOf(meminfo string) int64 {
	for line := range strings.Lines(meminfo) {
		if f := strings.Fields(line); len(f) == 3 && f[0] == "MemTotal:" && f[2] == "kB" {
			if n := bytesOf(f[1]); n < math.MaxInt64>>10 {
				return n << 10
			}
		}
	}
	return math.MaxInt64
}

// bytesOf reads a number; anything else, such as "max", is no limit.
func bytesOf(s string) int64 {
	n, err := strconv.ParseInt(strings.TrimSpace(s), 10, 64)
	if err != nil || n <= 0 {
		return math.MaxInt64
	}
	return n
}
