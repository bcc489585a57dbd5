package host

import (
	"path"
	"strconv"
)

// Placement tells of a server that runs where its card is, and how its port is paused.
type Placement struct {
	// Card names the RDMA device of the port; "": there is none.
	Card string
	// CardCPUs are the processors of the card's NUMA node, nil if it has none; CPUs those that the
	// process may use.
	CardCPUs, CPUs []int
	Pause          Pause
}

// Locate looks at the port that cfg.Device names, and at the process that serves it. What cannot be
// told is left out.
func Locate(cfg Config, pid int) (p Placement) {
	if cfg.Root == "" {
		cfg.Root = "/"
		cfg.askKernel()
	}
	m := newMachine(cfg)
	p.CPUs = parseCPUs(m.fieldOf("Cpus_allowed_list:", "proc", strconv.Itoa(pid), "status"))
	netdev := cfg.Device
	if m.dev != "" {
		p.Card, p.CardCPUs, netdev = path.Base(m.dev), m.cpusNearCard(), m.netdev
	}
	if m.cfg.Pause != nil && netdev != "" {
		p.Pause, _ = m.cfg.Pause(netdev) // a port without such counters is not paused
	}
	return p
}
