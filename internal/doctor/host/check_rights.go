package host

import (
	"errors"
	"fmt"
	"math"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"syscall"
)

// deviceNode wants the node to be there and this process to be allowed to open it.
func deviceNode(m *machine) []problem {
	if m.node == "" {
		return fault(m.rdma+" has no uverbs node", "modprobe ib_uverbs")
	}
	name := path.Join("/dev/infiniband", m.node)
	st, err := os.Stat(m.path(name))
	if err != nil {
		return fault(name+" is not there", "give the container --device "+name+
			", or on a host start udev")
	}
	if m.capability(capDACOverride) || m.mayWrite(st) {
		return nothing()
	}
	return fault(fmt.Sprintf("this user may not read and write %s (%s)", name, st.Mode().Perm()),
		"a udev rule KERNEL==\"uverbs*\", MODE=\"0666\", as most distributions have it, "+
			"or GROUP=\"rdma\"")
}

// mayWrite reports whether mode bits let this process read and write.
func (m *machine) mayWrite(st os.FileInfo) bool {
	bits := st.Mode().Perm()
	sys, ok := st.Sys().(*syscall.Stat_t)
	if !ok {
		return true
	}
	ids := func(field string) []string { return strings.Fields(m.status(field)) }
	shift := 0
	switch {
	case slices.Contains(ids("Uid"), strconv.Itoa(int(sys.Uid))):
		shift = 6
	case slices.Contains(append(ids("Gid"), ids("Groups")...), strconv.Itoa(int(sys.Gid))):
		shift = 3
	}
	return bits>>shift&6 == 6
}

// capabilities: drivers/infiniband/core/uverbs_cmd.c wants CAP_NET_RAW for raw packet queue pairs
// and flow rules.
func capabilities(m *machine) []problem {
	if m.capability(capNetRaw) {
		return nothing()
	}
	return fault("CAP_NET_RAW is missing: the kernel refuses raw packet queues and flow rules",
		"setcap cap_net_raw+ep PROGRAM, AmbientCapabilities=CAP_NET_RAW, docker --cap-add "+
			"NET_RAW, or be root")
}

// hostFilters: kernels with Linux commit 5d39580f68e6 want CAP_NET_ADMIN for filters of TCP
// sockets.
func hostFilters(m *machine) []problem {
	if m.cfg.Filter == nil || !errors.Is(m.cfg.Filter(), os.ErrPermission) {
		return nothing()
	}
	return note("--address host is refused: this kernel wants CAP_NET_ADMIN for filters of TCP "+
		"sockets",
		"for --address host setcap cap_net_raw,cap_net_admin+ep PROGRAM, "+
			"AmbientCapabilities=CAP_NET_RAW CAP_NET_ADMIN, docker --cap-add NET_ADMIN, or be root")
}

// userNamespace: up to linux 6.12 uverbs checks capabilities in the initial user namespace, whose
// map is 0 0 4294967295 (user_namespaces(7)).
func userNamespace(m *machine) []problem {
	ids := strings.Fields(m.text("proc/self/uid_map"))
	if len(ids) == 0 || slices.Equal(ids, []string{"0", "0", "4294967295"}) || !m.older(6, 13) {
		return nothing()
	}
	return fault("this is a user namespace, and this kernel wants CAP_NET_RAW outside of it",
		"run it without a user namespace (hostUsers: true, docker --userns=host), or on a "+
			"newer kernel")
}

// Memory that a server locks, in bytes: with one queue, and at most by default.
const (
	lockedLeast = 4 << 20
	lockedMost  = 30 << 20
)

func lockedMemory(m *machine) []problem {
	soft := strings.Fields(m.field("Max locked memory", "proc/self/limits"))
	if len(soft) == 0 || soft[0] == "unlimited" || m.capability(capIPCLock) {
		return nothing()
	}
	const advice = "ulimit -l unlimited, LimitMEMLOCK=64M, docker --ulimit memlock=-1, or " +
		"CAP_IPC_LOCK"
	n, err := strconv.ParseUint(soft[0], 10, 64)
	saw := fmt.Sprintf("this process may lock %.1f MiB", float64(n)/(1<<20))
	switch {
	case err != nil || n >= lockedMost:
		return nothing()
	case n < lockedLeast:
		return fault(saw+", a server with one queue needs 4 MiB", advice)
	}
	return note(saw+", a server with many queues takes up to 30 MiB", advice)
}

// cgroup is the directory of this process' cgroup (cgroups(7), version 2).
func (m *machine) cgroup() string {
	return path.Join("sys/fs/cgroup", m.field("0::", "proc/self/cgroup"))
}

// Objects that a server makes with one queue, and a few to spare.
const rdmaObjects = 40

// cgroupRDMA reads lines such as "mlx5_0 hca_handle=2 hca_object=2000".
func cgroupRDMA(m *machine) (found []problem) {
	for _, limit := range strings.Fields(m.field(m.rdma+" ", m.cgroup(), "rdma.max")) {
		name, value, _ := strings.Cut(limit, "=")
		least := map[string]uint64{"hca_handle": 1, "hca_object": rdmaObjects}[name]
		if n := below(value); n < least {
			found = append(found, problem{"failed",
				fmt.Sprintf("the cgroup allows %s=%d of %s, a server needs %d",
					name, n, m.rdma, least), "raise rdma.max of " +
					m.field("0::", "proc/self/cgroup")})
		}
	}
	return found
}

// below is a limit; "max" is none.
func below(limit string) uint64 {
	n, err := strconv.ParseUint(limit, 10, 64)
	if err != nil {
		return math.MaxUint64
	}
	return n
}

func cgroupMemory(m *machine) []problem {
	const least = 64 << 20
	if n := below(m.text(m.cgroup(), "memory.max")); n < least {
		return fault(fmt.Sprintf("the cgroup allows %d MiB of memory", n>>20),
			"allow 64 MiB and more: MemoryMax=, docker --memory")
	}
	return nothing()
}

// cgroupCPU reads cpu.max, "QUOTA PERIOD" in microseconds.
func cgroupCPU(m *machine) []problem {
	quota, period, _ := strings.Cut(m.text(m.cgroup(), "cpu.max"), " ")
	if q, p := below(quota), below(period); p > 0 && q < p {
		return note(fmt.Sprintf("the cgroup allows %d%% of one processor: rings fill "+
			"while the process waits for its turn",
			q*100/p), "allow one whole processor per queue: CPUQuota=, docker --cpus")
	}
	return nothing()
}
