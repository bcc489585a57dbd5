package uverbs

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// memory holds the figures of pinned memory when a command fails, for the hint.
type memory struct {
	needed uint64 // bytes this command pins; 0 for a command that pins none
	pinned uint64 // bytes this context had pinned before
	env    func() (Environment, error)
}

// errnoHint returns the text for the user about errno as the result of o.
func errnoHint(o *op, errno unix.Errno, m memory) string {
	if m.needed > 0 && (errno == unix.ENOMEM || errno == unix.EPERM) && !isCapError(o, errno) {
		return memlockHint(m)
	}
	if errno == enotsupp {
		errno = unix.EOPNOTSUPP
	}
	if h, ok := opHints[o.name][errno]; ok {
		return h
	}
	if o.verb == "destroy" {
		if h, ok := destroyHints[errno]; ok {
			return h
		}
	}
	if h, ok := anyHints[errno]; ok {
		return h
	}
	return "unexpected; the kernel log may say why: dmesg | grep mlx5"
}

// isCapError reports commands whose EPERM means a missing capability and not locked memory: the
// kernel checks the capability first.
func isCapError(o *op, errno unix.Errno) bool {
	return errno == unix.EPERM && (o == opCreateQP || o == opCreateWQ)
}

// memlockHint compares what a command would pin with the limit.
func memlockHint(m memory) string {
	const remedy = "raise RLIMIT_MEMLOCK (ulimit -l, systemd LimitMEMLOCK=, docker --ulimit " +
		"memlock=-1) or grant CAP_IPC_LOCK"
	env, err := m.env()
	if err != nil {
		return fmt.Sprintf(
			"needs %s of locked memory besides the %s already pinned by this context: %s",
			sizeText(m.needed), sizeText(m.pinned), remedy)
	}
	if !env.memlockApplies() {
		return "no memory lock limit applies to this process, so the device's firmware is out of " +
			"resources: use fewer or smaller queues"
	}
	text := fmt.Sprintf(
		"needs %s of locked memory besides the %s already pinned by this context, limit is %s "+
			"for the whole process: %s",
		sizeText(m.needed), sizeText(m.pinned), sizeText(env.Memlock), remedy)
	if m.needed+m.pinned <= env.Memlock {
		text += "; if the process pins nothing else, the device's firmware is out of resources: " +
			"use fewer or smaller queues"
	}
	return text
}

// sizeText prints a number of bytes in the largest unit in which it is an integer or close to one.
func sizeText(n uint64) string {
	switch {
	case n >= 1<<20 && n%(1<<20) == 0:
		return fmt.Sprintf("%d MiB", n>>20)
	case n >= 1<<20:
		return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20))
	case n >= 1<<10:
		return fmt.Sprintf("%.4g KiB", float64(n)/(1<<10))
	}
	return fmt.Sprintf("%d bytes", n)
}

const (
	hintNetRaw = "grant CAP_NET_RAW: setcap cap_net_raw+ep on the program, docker --cap-add " +
		"NET_RAW; up to linux 6.12 root of a user namespace does not count"
	hintTooOld = "linux 5.0 or later is needed, and the node must be an RDMA device's uverbs node"
	hintLog    = "a bug, or a firmware refusal: dmesg | grep mlx5 names it"
	hintFewer  = "the device is out of resources: use fewer or smaller queues"
	// rdmacg_try_charge of linux kernel/cgroup/rdma.c, or the firmware's NO_RES
	hintQuota = "the rdma cgroup or one above it allows no more objects: raise its rdma.max " +
		"(rdma-netstack doctor names it), or use fewer queues; else the device is out of resources"
	hintRemoved = "the device was removed or reset: stop, look in dmesg and devlink health, " +
		"open it again"
	hintUnsuited = "this device has no raw packet queues: an mlx5 NIC (ConnectX-4 or later) with " +
		"its port in Ethernet mode is needed"
	hintFallback = "the device does not have the feature: create it without"
)

// opHints give the meaning of an errno of one command.
var opHints = map[string]map[unix.Errno]string{
	"open": {
		unix.ENOENT: "no such node: load ib_uverbs, or give the container --device " +
			"/dev/infiniband/uverbsN",
		unix.EACCES: "the file mode forbids it: be root, join the node's group (often rdma), or " +
			"add a udev rule with MODE=0666",
		unix.EPERM: "the device cgroup forbids it (docker --device /dev/infiniband/uverbsN), or " +
			"RDMA is in exclusive network namespace mode and this is not the device's namespace " +
			"(rdma system show)",
		unix.ENXIO:  "the device is being removed or reset: wait for udev and try again",
		unix.ENODEV: "the device is being removed or reset: wait for udev and try again",
		unix.EIO:    "the device is being removed or reset: wait for udev and try again",
	},
	"GET_CONTEXT": {
		unix.ENOTTY:          hintTooOld,
		unix.EPROTONOSUPPORT: hintTooOld,
		unix.EBADF:           hintTooOld,
		unix.EAGAIN: "the rdma cgroup or one above it allows no more processes (hca_handle of " +
			"rdma.max), or the device is not active yet: try again",
		unix.EINVAL: "the driver is not mlx5_ib, or this descriptor has a context already",
		unix.ENOMEM: "more than 512 doorbell registers, or the function has no doorbell " +
			"page left: ask for fewer transmit queues",
	},
	"mmap": {
		unix.EPERM:  "the machine refuses this mapping type for device registers",
		unix.EAGAIN: "the kernel could not map device registers: it is short of memory",
		unix.EINVAL: hintLog,
	},
	"QUERY_DEVICE": {
		unix.EOPNOTSUPP: "the driver does not know the extended query, so it is not mlx5_ib",
	},
	"QUERY_PORT": {
		unix.EINVAL: "no such port: ports count from 1",
	},
	"REG_MR": {
		unix.EFAULT: "part of the memory is not mapped: a bug",
		unix.EOPNOTSUPP: "this memory cannot be pinned for DMA: it is file-backed, or the " +
			"machine is a confidential virtual machine",
		unix.EINVAL: "empty or misaligned memory, or access rights the kernel does not know",
		unix.ENOENT: "the protection domain is gone",
	},
	"CREATE_COMP_CHANNEL": {
		unix.EMFILE: "no file descriptor left: raise RLIMIT_NOFILE (ulimit -n)",
		unix.ENFILE: "the system has no file left: raise fs.file-max",
	},
	"ASYNC_EVENT_ALLOC": {
		unix.EMFILE: "no file descriptor left: raise RLIMIT_NOFILE (ulimit -n)",
		unix.ENFILE: "the system has no file left: raise fs.file-max",
	},
	"CREATE_CQ": {
		unix.EINVAL: "a limit of the device: number of entries, completion vector or entry size",
		unix.EOPNOTSUPP: "the device does not compress or pad completions like this: create the " +
			"queue without",
		unix.EBADF:  "the completion channel is closed",
		unix.ENOMEM: hintFewer,
		unix.EAGAIN: hintQuota,
	},
	"MODIFY_CQ": {
		unix.EINVAL:     "at most 65535 completions and 4095 microseconds",
		unix.EOPNOTSUPP: "the device does not moderate completion events",
	},
	"CREATE_QP": {
		unix.EPERM:      hintNetRaw,
		unix.EOPNOTSUPP: hintUnsuited,
		unix.EINVAL: "a limit of the device (sizes, user index, completion version), or the " +
			"port is InfiniBand",
		unix.ENOMEM: hintFewer,
		unix.EAGAIN: hintQuota,
	},
	"CREATE_RSS_QP": {
		unix.EPERM:      hintNetRaw,
		unix.EOPNOTSUPP: "the device does not spread frames like this: use a single queue",
		unix.EINVAL: "the key must have 40 bytes, and hash fields of IPv4 and IPv6, or of " +
			"TCP and UDP, cannot be mixed",
		unix.ENOMEM: hintFewer,
		unix.EAGAIN: hintQuota,
	},
	"MODIFY_QP": {
		unix.EINVAL: "wrong port, or the queue is not in the state it is believed to be in: " +
			"query it, or destroy it and create a new one",
		unix.EOPNOTSUPP: "RoCE is off and this is not a raw packet queue: a bug",
		unix.ENOSYS:     "an RSS queue pair has no states: a bug",
	},
	"EX_MODIFY_QP": {
		unix.EINVAL: "the rate is outside of what the device can (rdma-netstack devices " +
			"--verbose), or it takes no burst size",
		unix.ENOSPC: "all entries of the device's table hold other rates, of all its users " +
			"together: use fewer different rates",
		unix.EOPNOTSUPP: "the device or its firmware cannot pace send queues",
	},
	"QUERY_QP": {
		unix.ENOSYS: "an RSS queue pair has no states: a bug",
	},
	"CREATE_WQ": {
		unix.EOPNOTSUPP: "the device lacks striding, VLAN stripping, FCS scattering or delay " +
			"drop: create the queue without",
		unix.EPERM:  "delay drop needs CAP_SYS_RAWIO",
		unix.EINVAL: "a limit of the device: number of entries, entry size or strides",
		unix.ENOMEM: hintFewer,
		unix.EAGAIN: hintQuota,
	},
	"MODIFY_WQ": {
		unix.EINVAL: "the queue is not in the state it is believed to be in: destroy it and " +
			"create a new one",
		unix.EOPNOTSUPP: hintFallback,
	},
	"CREATE_RWQ_IND_TBL": {
		unix.EINVAL: "larger than the device's indirection tables",
		unix.ENOMEM: hintFewer,
		unix.EAGAIN: hintQuota,
	},
	"CREATE_FLOW": {
		unix.EPERM: hintNetRaw,
		unix.EINVAL: "a malformed rule: bits of a value outside its mask, ether type against " +
			"the IP specification, port or target",
		unix.EOPNOTSUPP: "the device or kernel cannot match this or cannot copy frames " +
			"(DONT_TRAP): use a simpler rule",
		unix.ENOMEM: "priority above 15, or the device is out of steering memory",
		unix.EEXIST: "the same match exists with another action, perhaps of another process " +
			"(rdma resource show qp)",
		unix.ENOSPC: "the device's rule table is full: use fewer rules or fewer different masks",
	},
	"CREATE_RAW_FLOW": {
		unix.EPERM: hintNetRaw,
		unix.EOPNOTSUPP: "the device cannot lead frames on to Linux (nic_rx_multi_path_tirs): go " +
			"without",
		unix.EPROTONOSUPPORT: "linux 5.6 or later can lead frames on to Linux: go without",
		unix.EINVAL:          "a malformed rule, or a field that the device cannot match",
	},
	"COUNTERS_CREATE": {
		unix.EOPNOTSUPP: "the device does not count flows",
	},
	"read": {
		unix.EIO: hintRemoved,
	},
}

// destroyHints give the meaning of an errno of any destroy command.
var destroyHints = map[unix.Errno]string{
	unix.EBUSY:  "another object still uses it: close users first",
	unix.ENOENT: "it was destroyed already: a bug",
}

// anyHints give the meaning of an errno of any command.
var anyHints = map[unix.Errno]string{
	unix.EIO:             hintRemoved,
	unix.ENODEV:          hintRemoved,
	unix.EINVAL:          hintLog,
	unix.EFAULT:          "a buffer address was wrong: a bug",
	unix.ENOSPC:          "a request or response struct was too short: a bug",
	unix.ENOENT:          "no such handle: the object is gone",
	unix.EBADF:           "the device node was closed",
	unix.EACCES:          "the credentials changed since the node was opened",
	unix.EPERM:           "the process lacks a privilege; rdma-netstack devices says which",
	unix.ENOMEM:          hintFewer,
	unix.EAGAIN:          hintQuota,
	unix.EBUSY:           "the device is busy: try again",
	unix.EOPNOTSUPP:      "this kernel or device cannot do that",
	unix.EPROTONOSUPPORT: "this kernel does not know the command",
	unix.ENOTTY:          hintTooOld,
	unix.EINTR:           "the process is being killed",
}
