// Package memlimit finds out how much memory this process may use.
package memlimit

import (
	"io/fs"
	"math"
	"os"
	"path"
	"runtime/debug"
	"strconv"
	"strings"
)

// Available returns how much memory this process may use, in bytes: the least of the machine's, the
// limits of its cgroup and of those above it (memory.max of version 2, memory.limit_in_bytes of
// version 1), and GOMEMLIMIT. It asks the kernel rather than /proc/meminfo, which a sandboxed
// service need not see. What cannot be read is no limit.
func Available() int64 {
	return min(machineMemory(), cgroupLimit(os.DirFS("/")), debug.SetMemoryLimit(-1))
}

// cgroupLimit returns the least limit of the cgroups that a process is in, as of the files of root.
// In a container the process's own cgroup is mounted as the topmost.
func cgroupLimit(root fs.FS) int64 {
	least := int64(math.MaxInt64)
	own, _ := fs.ReadFile(root, "proc/self/cgroup")
	for line := range strings.Lines(string(own) + "0::/\n") {
		parts := strings.SplitN(strings.TrimSpace(line), ":", 3) // hierarchy, controllers, path
		if len(parts) < 3 {
			continue
		}
		top, file := "sys/fs/cgroup", "memory.max"
		if parts[1] == "memory" {
			top, file = "sys/fs/cgroup/memory", "memory.limit_in_bytes"
		} else if parts[1] != "" {
			continue
		}
		for at := path.Clean("/" + parts[2]); ; at = path.Dir(at) {
			text, _ := fs.ReadFile(root, path.Join(top, at, file))
			least = min(least, parseLimit(string(text)))
			if at == "/" {
				break
			}
		}
	}
	return least
}

// parseLimit reads a number of bytes; anything else, such as "max", is no limit.
func parseLimit(s string) int64 {
	n, err := strconv.ParseInt(strings.TrimSpace(s), 10, 64)
	if err != nil || n <= 0 {
		return math.MaxInt64
	}
	return n
}
