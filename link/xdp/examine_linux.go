package xdp

import (
	"errors"
	"fmt"
	"strings"

	"golang.org/x/sys/unix"
)

// Examine looks at all that Open asks for, and attaches nothing.
func Examine(cfg Config) (found []Finding, err error) {
	asker, err := newAsker()
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, asker.closeSockets()) }()
	f, _, err := asker.factsOf(cfg.Device)
	if err != nil {
		return nil, err
	}
	queues := min(f.queues, maxQueues)
	found = []Finding{
		{Check: "interface", Err: f.refuseConfig(&cfg),
			Note: fmt.Sprintf("%s is served by %d of %d queues", f.name, queues, f.queues)},
		{Check: "zero copy", Note: f.foreseeCopy(&cfg)},
		{Check: "capabilities", Err: lackingCapabilities()},
		{Check: "locked memory", Err: lackingMemory(queues, cfg.Send)},
	}
	if queues == f.queues {
		found[0].Note = ""
	}
	return found, nil
}

// foreseeCopy says why frames will be copied, "" if they need not be, as far as that is known.
func (f *facts) foreseeCopy(c *Config) string {
	if f.featuresKnown && f.features&featureZeroCopy != 0 && !c.Copy {
		return ""
	}
	if !f.featuresKnown && !c.Copy {
		return "whether the driver has zero copy is seen when it serves: the kernel, before 6.3, " +
			"does not tell"
	}
	return "frames are copied: " + f.whyCopy(c)
}

// lackingCapabilities names those that the thread has not in effect.
func lackingCapabilities() error {
	has, err := effectiveCapabilities()
	if err != nil {
		return err
	}
	var lacking []string
	for _, c := range []struct {
		number int
		name   string
	}{{unix.CAP_NET_RAW, "CAP_NET_RAW"}, {unix.CAP_NET_ADMIN, "CAP_NET_ADMIN"},
		{unix.CAP_BPF, "CAP_BPF"}} {
		if has&(1<<c.number) == 0 &&
			(c.number != unix.CAP_BPF || has&(1<<unix.CAP_SYS_ADMIN) == 0) {
			lacking = append(lacking, c.name)
		}
	}
	if len(lacking) == 0 {
		return nil
	}
	return fmt.Errorf("%s missing, which AF_XDP needs while it opens: setcap "+
		"cap_bpf,cap_net_admin,cap_net_raw+ep on the program, or be root",
		strings.Join(lacking, " and "))
}

func effectiveCapabilities() (uint64, error) {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var sets [2]unix.CapUserData
	if err := unix.Capget(&header, &sets[0]); err != nil {
		return 0, fmt.Errorf("read capabilities: %w", err)
	}
	return uint64(sets[1].Effective)<<32 | uint64(sets[0].Effective), nil
}

// lackingMemory says what the limit of locked memory is short of.
func lackingMemory(queues int, send Send) error {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_MEMLOCK, &limit); err != nil {
		return fmt.Errorf("read the limit of locked memory: %w", err)
	}
	has, err := effectiveCapabilities()
	need := uint64(queues) * uint64(framesFor(send)) * chunk
	if err != nil || has&(1<<unix.CAP_IPC_LOCK) != 0 || limit.Cur >= need {
		return err
	}
	return fmt.Errorf("%d queues need %d KiB of locked memory, and the process may have %d KiB: "+
		"ulimit -l unlimited, LimitMEMLOCK=infinity of systemd, or CAP_IPC_LOCK", queues, need>>10,
		limit.Cur>>10)
}
