package host

import (
	"cmp"
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
		return faultFound(m.rdma+" has no uverbs node", "modprobe ib_uverbs")
	}
	name := path.Join("/dev/infiniband", m.node)
	st, err := os.Stat(m.joinPath(name))
	if err != nil {
		return faultFound(name+" is not there", "give the container --device "+name+
			", or on a host start udev")
	}
	if m.capability(capDACOverride) || m.mayWrite(st) {
		return noProblem()
	}
	return faultFound(fmt.Sprintf("this user may not read and write %s (%s)", name,
		st.Mode().Perm()),
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
	ids := func(field string) []string { return strings.Fields(m.statusField(field)) }
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
		return noProblem()
	}
	return faultFound("CAP_NET_RAW is missing: the kernel refuses raw packet queues and flow rules",
		"setcap cap_net_raw+ep PROGRAM, AmbientCapabilities=CAP_NET_RAW, docker --cap-add "+
			"NET_RAW, or be root")
}

// hostFilters: kernels with Linux commit 5d39580f68e6 want CAP_NET_ADMIN for classic filters of TCP
// sockets, which those have where bpf(2) is refused.
func hostFilters(m *machine) []problem {
	if m.cfg.Filter == nil || !errors.Is(m.cfg.Filter(), os.ErrPermission) {
		return noProblem()
	}
	return noteFound(
		"--address host is refused: this kernel wants CAP_NET_ADMIN for filters of TCP "+
			"sockets",
		"for --address host setcap cap_net_raw,cap_net_admin+ep PROGRAM, "+
			"AmbientCapabilities=CAP_NET_RAW CAP_NET_ADMIN, docker --cap-add NET_ADMIN, or be root")
}

// userNamespace: up to linux 6.12 uverbs checks capabilities in the initial user namespace, whose
// map is 0 0 4294967295 (user_namespaces(7)).
func userNamespace(m *machine) []problem {
	ids := strings.Fields(m.readText("proc/self/uid_map"))
	if len(ids) == 0 || slices.Equal(ids, []string{"0", "0", "4294967295"}) || !m.kernelOlder(6,
		13) {
		return noProblem()
	}
	return faultFound("this is a user namespace, and this kernel wants CAP_NET_RAW outside of it",
		"run it without a user namespace (hostUsers: true, docker --userns=host), or on a "+
			"newer kernel")
}

// Memory that a server locks, in bytes: with one queue, and at most by default.
const (
	lockedLeast = 4 << 20
	lockedMost  = 30 << 20
)

func lockedMemory(m *machine) []problem {
	soft := strings.Fields(m.fieldOf("Max locked memory", "proc/self/limits"))
	if len(soft) == 0 || soft[0] == "unlimited" || m.capability(capIPCLock) {
		return noProblem()
	}
	const advice = "ulimit -l unlimited, LimitMEMLOCK=64M, docker --ulimit memlock=-1, or " +
		"CAP_IPC_LOCK"
	n, err := strconv.ParseUint(soft[0], 10, 64)
	saw := fmt.Sprintf("this process may lock %.1f MiB", float64(n)/(1<<20))
	switch {
	case err != nil || n >= lockedMost:
		return noProblem()
	case n < lockedLeast:
		return faultFound(saw+", a server with one queue needs 4 MiB", advice)
	}
	return noteFound(saw+", a server with many queues takes up to 30 MiB", advice)
}

// limitDir holds the directory of a cgroup that this process is below, or in, and its name there.
type limitDir struct{ dir, name string }

// cgroupLimits returns the directories of the cgroups that limit a resource, from this process' own
// to the root: each of them does. controller is one of version 1; where it is not mounted, and in
// version 2, which names none, the cgroups of version 2 count (cgroups(7)).
func (m *machine) cgroupLimits(controller string) (dirs []limitDir) {
	var own, root string
	for line := range strings.Lines(m.readText("proc/self/cgroup")) {
		parts := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(parts) < 3 {
			continue
		}
		switch {
		case parts[0] == "0" && parts[1] == "" && root == "":
			own, root = parts[2], "sys/fs/cgroup"
		case slices.Contains(strings.Split(parts[1], ","), controller):
			own, root = parts[2], "sys/fs/cgroup/"+parts[1]
			if !m.exists(root) {
				root = "sys/fs/cgroup/" + controller
			}
		}
	}
	for name := path.Join("/", own); root != ""; name = path.Dir(name) {
		dirs = append(dirs, limitDir{path.Join(root, name), name})
		if name == "/" {
			break
		}
	}
	return dirs
}

// Objects that the rdma cgroup charges (alloc_begin_idr_uobject of linux
// drivers/infiniband/core/rdma_core.c), as counted by TestObjects of package dv: those of an open
// device without queues, of each queue, and those that a change of the queues' shares needs for a
// moment.
const (
	objectsOfDevice  = 21
	objectsPerQueue  = 2
	objectsToBalance = 13
)

// Queues that a server has by default, at most.
const (
	defaultRxQueues = 4
	defaultTxQueues = 8
)

// cgroupRDMA reads lines such as "mlx5_0 hca_handle=2 hca_object=2000".
func cgroupRDMA(m *machine) (found []problem) {
	rx, tx := cmp.Or(m.cfg.RxQueues, defaultRxQueues), cmp.Or(m.cfg.TxQueues, defaultTxQueues)
	need := map[string]uint64{"hca_handle": 1,
		"hca_object": uint64(objectsOfDevice + objectsPerQueue*(rx+tx))}
	for _, at := range m.cgroupLimits("rdma") {
		used := map[string]uint64{}
		for _, use := range strings.Fields(m.fieldOf(m.rdma+" ", at.dir, "rdma.current")) {
			name, value, _ := strings.Cut(use, "=")
			used[name], _ = strconv.ParseUint(value, 10, 64)
		}
		for _, limit := range strings.Fields(m.fieldOf(m.rdma+" ", at.dir, "rdma.max")) {
			name, value, _ := strings.Cut(limit, "=")
			n := parseLimit(value)
			least, known := need[name]
			if !known || n == math.MaxUint64 {
				continue
			}
			saw := fmt.Sprintf("the cgroup %s allows %s=%d of %s", at.name, name, n, m.rdma)
			if used[name] > 0 {
				saw += fmt.Sprintf(", %d of them in use", used[name])
			}
			left := n - min(n, used[name])
			advice := "raise rdma.max of " + at.name
			switch {
			case left < least && name == "hca_handle":
				found = append(found, faultFound(saw+", a server needs 1", advice)...)
			case left < least:
				found = append(found,
					faultFound(fmt.Sprintf("%s, a server with %d receive and %d send "+
						"queues needs %d", saw, rx, tx, least), advice+", or use fewer queues")...)
			case name == "hca_object" && left < least+objectsToBalance:
				found = append(found,
					noteFound(fmt.Sprintf("%s, a server with %d receive and %d send "+
						"queues needs %d, and %d to spread load anew", saw, rx, tx, least,
						least+objectsToBalance), advice+", or use fewer queues")...)
			}
		}
	}
	return found
}

// parseLimit returns a limit; "max" is none.
func parseLimit(limit string) uint64 {
	n, err := strconv.ParseUint(limit, 10, 64)
	if err != nil {
		return math.MaxUint64
	}
	return n
}

// cgroupMemory reads memory.max, or memory.limit_in_bytes of version 1, where a huge number stands
// for none.
func cgroupMemory(m *machine) (found []problem) {
	const least = 64 << 20
	for _, at := range m.cgroupLimits("memory") {
		n := min(parseLimit(m.readText(at.dir, "memory.max")),
			parseLimit(m.readText(at.dir, "memory.limit_in_bytes")))
		if n < least {
			found = append(found, faultFound(fmt.Sprintf("the cgroup %s allows %d MiB of memory",
				at.name, n>>20), "allow 64 MiB and more: MemoryMax=, docker --memory")...)
		}
	}
	return found
}

// cgroupCPU reads cpu.max, "QUOTA PERIOD" in microseconds, or the two files of version 1, where a
// quota of -1 is none.
func cgroupCPU(m *machine) (found []problem) {
	for _, at := range m.cgroupLimits("cpu") {
		quota, period, _ := strings.Cut(m.readText(at.dir, "cpu.max"), " ")
		if quota == "" {
			quota = m.readText(at.dir, "cpu.cfs_quota_us")
			period = m.readText(at.dir, "cpu.cfs_period_us")
		}
		if q, p := parseLimit(quota), parseLimit(period); p > 0 && p < math.MaxUint64 && q < p {
			found = append(found,
				noteFound(fmt.Sprintf("the cgroup %s allows %d%% of one processor: "+
					"rings fill while the process waits for its turn", at.name, q*100/p),
					"allow one whole processor per queue: CPUQuota=, docker --cpus")...)
		}
	}
	return found
}
