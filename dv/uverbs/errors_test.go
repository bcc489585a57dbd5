package uverbs

import (
	"errors"
	"io/fs"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestHints pins the sentences users act on.
func TestHints(t *testing.T) {
	limited := func() (Environment, error) { return Environment{Memlock: 8 << 20}, nil }
	locked := func() (Environment, error) {
		return Environment{Memlock: 8 << 20, IPCLock: true},
			nil
	}
	for _, tc := range []struct {
		name  string
		op    *op
		errno unix.Errno
		m     memory
		want  []string
	}{
		{"no CAP_NET_RAW, QP", opCreateQP, unix.EPERM, memory{needed: 65536, env: limited},
			[]string{"CAP_NET_RAW", "setcap", "--cap-add"}},
		{"no CAP_NET_RAW, flow", opCreateFlow, unix.EPERM, memory{}, []string{"CAP_NET_RAW"}},
		{"memlock", opRegMR, unix.ENOMEM, memory{needed: 32 << 20, pinned: 1 << 19, env: limited},
			[]string{"needs 32 MiB", "512 KiB already pinned", "limit is 8 MiB", "RLIMIT_MEMLOCK",
				"LimitMEMLOCK=", "--ulimit memlock", "CAP_IPC_LOCK"}},
		{"memlock of a ring", opCreateWQ, unix.ENOMEM, memory{needed: 8192, env: limited},
			[]string{"needs 8 KiB", "limit is 8 MiB", "RLIMIT_MEMLOCK", "firmware"}},
		{"memlock 0", opRegMR, unix.EPERM,
			memory{needed: 1, env: func() (Environment, error) { return Environment{}, nil }},
			[]string{"needs 1 bytes", "limit is 0 bytes"}},
		{"memlock does not apply", opRegMR, unix.ENOMEM, memory{needed: 32 << 20, env: locked},
			[]string{"firmware", "fewer or smaller"}},
		{"memlock unknown", opRegMR, unix.ENOMEM,
			memory{needed: 32 << 20, env: func() (Environment, error) {
				return Environment{},
					fs.ErrNotExist
			}}, []string{"needs 32 MiB", "RLIMIT_MEMLOCK"}},
		{"delay drop", opCreateWQ, unix.EPERM, memory{needed: 1, env: limited},
			[]string{"CAP_SYS_RAWIO"}},
		{"no node", opOpenNode, unix.ENOENT, memory{}, []string{"--device"}},
		{"cgroup", opOpenNode, unix.EPERM, memory{},
			[]string{"device cgroup", "exclusive network namespace"}},
		{"old kernel", opGetContext, unix.EPROTONOSUPPORT, memory{}, []string{"linux 5.0"}},
		{"not ready", opGetContext, unix.EAGAIN, memory{}, []string{"rdma cgroup"}},
		{"not mlx5", opQueryDevice, unix.EOPNOTSUPP, memory{}, []string{"not mlx5_ib"}},
		{"rxe", opCreateQP, unix.EOPNOTSUPP, memory{}, []string{"ConnectX-4"}},
		{"busy", opDestroyCQ, unix.EBUSY, memory{}, []string{"close users first"}},
		{"removed", opModifyQP, unix.EIO, memory{}, []string{"removed or reset"}},
		{"flow of others", opCreateFlow, unix.EEXIST, memory{}, []string{"another action"}},
		{"524", opCreateFlow, enotsupp, memory{}, []string{"DONT_TRAP"}},
		{"unknown", opAllocPD, unix.EXDEV, memory{}, []string{"dmesg"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			h := errnoHint(tc.op, tc.errno, tc.m)
			for _, w := range tc.want {
				if !strings.Contains(h, w) {
					t.Errorf("%q lacks %q", h, w)
				}
			}
		})
	}
}

// TestHintTables: every row of the tables belongs to a command and says something.
func TestHintTables(t *testing.T) {
	names := map[string]bool{}
	for _, o := range []*op{opOpenNode, opGetContext, opAsyncEvents, opReadEvent,
		opQueryDevice, opQueryPort, opMapUAR, opAllocPD, opRegMR,
		opCreateChannel, opCreateCQ, opModifyCQ, opCreateQP, opCreateRSSQP, opModifyQP, opPaceQP,
		opQueryQP, opCreateWQ, opModifyWQ,
		opCreateIndTable, opCreateFlow, opCreateMatcher, opCreateMiss, opCreateCounters} {
		names[o.name] = true
	}
	for name, row := range opHints {
		if !names[name] {
			t.Errorf("hints for %q, which is no command", name)
		}
		for errno, h := range row {
			if h == "" {
				t.Errorf("%s %v: empty hint", name, errno)
			}
		}
	}
}

func TestErrorText(t *testing.T) {
	err := kernelFailure(opCreateCQ, "completion queue of 1024 entries", unix.EINVAL, memory{})
	want := "create completion queue of 1024 entries: invalid argument (a limit of the device: " +
		"number of entries, completion vector or entry size)"
	if err.Error() != want {
		t.Errorf("%q, want %q", err, want)
	}
	if !errors.Is(kernelFailure(opOpenNode, "x", unix.ENOENT, memory{}), fs.ErrNotExist) ||
		!errors.Is(kernelFailure(opCreateQP, "x", unix.EPERM, memory{}), fs.ErrPermission) {
		t.Error("errors do not unwrap to what package os knows")
	}
	broken := errors.New("wire cut")
	if err := kernelFailure(opAllocPD, "protection domain", broken, memory{}); !errors.Is(err,
		broken) ||
		errors.Is(err, unix.EIO) || err.Hint == "" {
		t.Errorf("a failure that is not an errno: %v", err)
	}
}

func TestSizes(t *testing.T) {
	for n, want := range map[uint64]string{0: "0 bytes", 1023: "1023 bytes", 65536: "64 KiB",
		1 << 20: "1 MiB", 33<<20 + 1<<19: "33.5 MiB", 12345: "12.06 KiB"} {
		if have := sizeText(n); have != want {
			t.Errorf("%d is %q, want %q", n, have, want)
		}
	}
}
