package host

import (
	"github.com/rdma-netstack/rdma-netstack/internal/doctor"
)

// Config says what to look at.
type Config struct {
	// Device is an RDMA device, a port of one ("mlx5_0/2"), or the netdev of a port by its name or
	// an alternative one. Default: the first mlx5 device there is.
	Device string
	// Locate finds the port that Device names as the driver does; nil, or an error: by files, of
	// which not all say which netdev is at which of several ports.
	Locate func(device string) (Port, error)
	// NetdevName gives the name of the netdev that has an alternative name, and name itself if
	// there is none. nil: ask netlink with the machine's own root.
	NetdevName func(name string) string
	// Root says where /proc, /sys and /dev are; "" is the machine's own. With another root nothing
	// is asked but files and what follows.
	Root string
	// Seen is told of each path below Root that is looked at, nil: nobody is.
	Seen func(path string)
	// RxQueues and TxQueues are those of the server to be, for the objects that it needs. Default:
	// what a server has by default, at most.
	RxQueues, TxQueues int
	// ESwitchMode is "legacy" or "switchdev", of the device at a PCI address; VF is how the
	// physical function's netdev has its virtual function number n configured; Pause what a
	// netdev's port says of pause frames; RxRing how many slots its receive rings have, and could;
	// Filter whether the kernel lets this process filter a TCP socket. nil: ask netlink or the
	// kernel with the machine's own root, else they are not known.
	ESwitchMode func(pci string) (string, error)
	VF          func(pf string, n int) (VF, error)
	Pause       func(netdev string) (Pause, error)
	RxRing      func(netdev string) (size, most int, err error)
	Filter      func() error
}

// Port describes a port of an RDMA device.
type Port struct {
	RDMA, Netdev string // Netdev is "" if it is not in this network namespace
	Port         int    // from 1
}

// VF is how a virtual function is configured.
type VF struct{ Trusted, SpoofCheck bool }

// Find returns the port that cfg.Device names, as far as files tell, and the address of its PCI
// function; both are empty where there is no such device.
func Find(cfg Config) (at Port, pci string) {
	if cfg.Root == "" {
		cfg.Root = "/"
		cfg.askKernel()
	}
	m := newMachine(cfg)
	if m.dev == "" {
		return Port{}, ""
	}
	return Port{RDMA: m.rdma, Netdev: m.netdev, Port: m.portN}, m.pciAddress()
}

// problem holds what a check found.
type problem struct {
	state   doctor.State // Failed, or Note
	saw, do string
}

// Run looks, and reports one result per problem, and one per check that found none.
func Run(cfg Config) doctor.Report {
	if cfg.Root == "" {
		cfg.Root = "/"
		cfg.askKernel()
	}
	m := newMachine(cfg)
	r := doctor.Report{Title: "doctor", Device: m.rdma}
	for _, c := range allChecks() {
		found := c.look(m)
		if len(found) == 0 {
			r.Results = append(r.Results, doctor.Result{Check: c.name, State: doctor.OK})
		}
		for _, p := range found {
			r.Results = append(r.Results, doctor.Result{Check: c.name, State: p.state,
				Saw: p.saw, Do: p.do})
		}
	}
	return r
}

// noProblem returns what a check finds that finds nothing wrong.
func noProblem() []problem { return nil }

func faultFound(saw, do string) []problem { return []problem{{doctor.Failed, saw, do}} }

func noteFound(saw, do string) []problem { return []problem{{doctor.Note, saw, do}} }
