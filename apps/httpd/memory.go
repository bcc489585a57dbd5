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

// connsForMemory returns the number of connections that fit into half of the memory this process
// may use. It asks the kernel rather than /proc/meminfo, which a sandboxed service need not see.
func connsForMemory() int {
	cgroup, _ := os.ReadFile("/sys/fs/cgroup/memory.max")
	memory := min(machineMemory(), bytesOf(string(cgroup)), debug.SetMemoryLimit(-1))
	return int(min(max(memory/2/connMemory, fewConns), manyConns))
}

// bytesOf reads a number; anything else, such as "max", is no limit.
func bytesOf(s string) int64 {
	n, err := strconv.ParseInt(strings.TrimSpace(s), 10, 64)
	if err != nil || n <= 0 {
		return math.MaxInt64
	}
	return n
}
