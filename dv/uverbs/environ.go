package uverbs

import (
	"bufio"
	"bytes"
	"fmt"
	"math"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Environment holds what the process may do, as far as raw packet queues care.
type Environment struct {
	NetRaw  bool   // CAP_NET_RAW is effective: raw queue pairs and flow rules may be created
	IPCLock bool   // CAP_IPC_LOCK is effective: Memlock does not apply
	RawIO   bool   // CAP_SYS_RAWIO is effective: delay-drop work queues may be created
	Memlock uint64 // bytes the process may pin (RLIMIT_MEMLOCK, soft), or MemlockUnlimited
}

// Capability numbers of include/uapi/linux/capability.h.
const (
	capNetRaw   = 13
	capIPCLock  = 14
	capSysRawIO = 17
)

// MemlockUnlimited gives the value of Environment.Memlock when there is no limit.
const MemlockUnlimited = math.MaxUint64

// ReadEnvironment reads the calling thread's effective capabilities and the process's memory lock
// limit. Up to linux 6.12 CAP_NET_RAW has to be held in the initial user namespace, which a process
// cannot see: inside a user namespace NetRaw may be true and creation may still fail with EPERM.
func ReadEnvironment() (Environment, error) {
	caps, err := EffectiveCapabilities()
	if err != nil {
		return Environment{}, err
	}
	limit, err := MemlockLimit()
	return Environment{
		NetRaw:  caps&(1<<capNetRaw) != 0,
		IPCLock: caps&(1<<capIPCLock) != 0,
		RawIO:   caps&(1<<capSysRawIO) != 0,
		Memlock: limit,
	}, err
}

// EffectiveCapabilities returns the effective capability set of the calling thread, bit n for
// capability n.
func EffectiveCapabilities() (uint64, error) {
	status, err := os.ReadFile("/proc/thread-self/status")
	if err != nil {
		return 0, fmt.Errorf("read effective capabilities: %w", err)
	}
	return parseCapEff(status)
}

// parseCapEff finds the CapEff line of /proc/<pid>/status.
func parseCapEff(status []byte) (uint64, error) {
	lines := bufio.NewScanner(bytes.NewReader(status))
	for lines.Scan() {
		if hex, ok := strings.CutPrefix(lines.Text(), "CapEff:"); ok {
			caps, err := strconv.ParseUint(strings.TrimSpace(hex), 16, 64)
			if err != nil {
				return 0, fmt.Errorf("read effective capabilities: %w", err)
			}
			return caps, nil
		}
	}
	return 0, fmt.Errorf("read effective capabilities: no CapEff line in %d bytes of /proc status",
		len(status))
}

// MemlockLimit returns the soft RLIMIT_MEMLOCK in bytes, or MemlockUnlimited.
func MemlockLimit() (uint64, error) {
	var lim unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_MEMLOCK, &lim); err != nil {
		return 0, fmt.Errorf("read memory lock limit: %w", err)
	}
	return lim.Cur, nil
}

// memlockApplies reports whether pinning memory is limited at all.
func (e Environment) memlockApplies() bool { return !e.IPCLock && e.Memlock != MemlockUnlimited }

// CheckMemlock returns nil if needed bytes can be pinned as far as the limit goes, and otherwise an
// error that wraps ENOMEM (EPERM for a limit of 0), as registering them would, with both figures.
// Memory the process has pinned already counts against the same limit and is not known here.
func (e Environment) CheckMemlock(needed uint64) error {
	if !e.memlockApplies() || needed <= e.Memlock {
		return nil
	}
	errno := unix.ENOMEM
	if e.Memlock == 0 {
		errno = unix.EPERM
	}
	env := func() (Environment, error) { return e, nil }
	return &Error{Cmd: "pin", Object: "memory for queues and frames", Errno: errno,
		Hint: memlockHint(memory{needed: needed, env: env})}
}
