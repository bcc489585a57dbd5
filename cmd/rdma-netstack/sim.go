package main

import (
	"bufio"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/rdma-netstack/rdma-netstack/clock"
	"github.com/rdma-netstack/rdma-netstack/cmd/rdma-netstack/lab"
	"github.com/rdma-netstack/rdma-netstack/simnic"
	"github.com/rdma-netstack/rdma-netstack/simnic/wire"
)

// Defaults of the software NIC.
const (
	simDevice = "sim"
	simTAP    = "slice0"
)

// simFlags describe the software NIC of --device sim.
type simFlags struct {
	wire, netdev string
	wireFlag     string // the flag of that wire, without dashes
	record       string
	faults       wire.FaultConfig
	card         string // the NIC's model, by a name of simnic.Cards; "": the default one
}

func (s *simFlags) addTo(cmd *cobra.Command, title string) {
	s.wireFlag, s.wire, s.netdev = "sim-wire", "tap:"+simTAP, "none"
	addFlags(cmd, title,
		opt(s.wireFlag, "WIRE", &s.wire, "what the port is connected to: nothing (none), an "+
			"existing interface through a packet socket (packet:IFNAME), or a TAP interface "+
			"that is made on this machine (tap:NAME) and gets the gateway's address, or the first "+
			"free one of each subnet, so that curl and dig reach the slice from here. A TAP needs "+
			"root. A subnet that this machine uses elsewhere is refused", wireWords),
		opt("sim-netdev", "WIRE", &s.netdev, "what the port's Linux side is connected to, in "+
			"the same form", wireWords),
		opt("sim-record", "FILE", &s.record, "write every frame on the wire to a pcap file"),
		opt("sim-card", "CARD", func(name string) error {
			card, err := simnic.CardNamed(name)
			s.card = card.Name
			return err
		}, "card that the software NIC imitates: cx4lx, cx5, cx6dx, cx7 or bf2 (default cx6dx)",
			oneOf("cx4lx", "cx5", "cx6dx", "cx7", "bf2")),
		opt("faults", "LIST", &s.faults, "faults of the wire, such as "+
			"drop=1%,reorder=5%,dup=1%,delay=2ms"))
}

// wireWords lists what a wire may begin with.
var wireWords = oneOf("tap:", "packet:", "none")

// simFlagNames are those that need --device sim.
var simFlagNames = []string{"sim-wire", "sim-netdev", "sim-record", "sim-card", "faults"}

// wireSpec holds what one port of the software NIC is connected to, as written on the command line.
type wireSpec struct {
	kind, name string
	flag       string // that specified the wire, without dashes
}

func parseWireSpec(flagName, s string) (wireSpec, error) {
	kind, name, _ := strings.Cut(s, ":")
	switch {
	case kind == "none" && name == "",
		(kind == "tap" || kind == "packet") && name != "" && len(name) < unix.IFNAMSIZ:
		return wireSpec{kind, name, flagName}, nil
	}
	return wireSpec{}, usageError{
		fmt.Errorf(
			"--%s %q: want tap:NAME, packet:IFNAME or none, with an interface name of at most %d "+
				"characters",
			flagName,
			s,
			unix.IFNAMSIZ-1,
		),
	}
}

// open opens the wire in the calling thread's network namespace; nil for none.
func (p wireSpec) open() (wire.Wire, error) {
	switch p.kind {
	case "tap":
		w, err := wire.OpenTAP(p.name)
		if errors.Is(err, unix.EPERM) || errors.Is(err, unix.EACCES) {
			return nil, fmt.Errorf(
				"%w: run as root, or see \"rdma-netstack demo\", which needs no privilege",
				err,
			)
		}
		if errors.Is(err, unix.EBUSY) || errors.Is(err, unix.EINVAL) {
			return nil, fmt.Errorf(
				"%w: another program has it, or it is no TAP interface; --%s tap:NAME makes one "+
					"of another name",
				err,
				p.flag,
			)
		}
		if err != nil {
			return nil, err
		}
		return w, nil
	case "packet":
		w, err := wire.OpenPacket(p.name)
		if errors.Is(err, unix.ENODEV) {
			return nil, fmt.Errorf("%w: \"ip link\" lists the interfaces there are", err)
		}
		if err != nil {
			return nil, err
		}
		return w, nil
	}
	return nil, nil
}

// openSim makes the software NIC and connects it. undo closes what it opened, also when openSim
// fails.
func openSim(s simFlags, mtu int, host []netip.Prefix, log *slog.Logger,
	undo *cleanup) (*simnic.NIC, error) {
	wire, err := parseWireSpec(s.wireFlag, s.wire)
	if err != nil {
		return nil, err
	}
	netdev, err := parseWireSpec("sim-netdev", s.netdev)
	if err != nil {
		return nil, err
	}
	nic, err := simnic.New(simnic.Config{MTU: mtu, Netdev: netdev.name, Card: s.card,
		Logger: log})
	if err != nil {
		return nil, fmt.Errorf("make the software NIC: %w", err)
	}
	undo.add(nic.Close)
	if err := connectSpec(nic.ConnectNetdev, netdev,
		lab.Setup{MAC: nic.MAC(), MTU: nic.MTU()}, nil); err != nil {
		return nil, err
	}
	middle, err := s.middleware(undo)
	if err != nil {
		return nil, err
	}
	return nic, connectSpec(nic.ConnectWire, wire,
		lab.Setup{MTU: nic.MTU(), Addresses: host}, middle)
}

// connectSpec opens a wire, sets its interface up if it was made for the wire, and connects it.
func connectSpec(connect func(wire.Wire) error, p wireSpec, setup lab.Setup,
	middle func(wire.Wire) (wire.Wire, error)) error {
	wire, err := p.open()
	if err != nil || wire == nil {
		return err
	}
	if p.kind == "tap" {
		err = lab.Up(p.name, setup)
	}
	if err == nil && middle != nil {
		wire, err = middle(wire)
	}
	if err == nil {
		err = connect(wire)
	}
	if err != nil {
		return errors.Join(err, wire.Close())
	}
	return nil
}

// middleware wraps the wire as the flags request: faults nearest to the NIC, so that a capture
// shows the other side's view.
func (s simFlags) middleware(undo *cleanup) (func(wire.Wire) (wire.Wire, error), error) {
	record := func(w wire.Wire) (wire.Wire, error) { return w, nil }
	if s.record != "" {
		f, err := os.Create(s.record)
		if err != nil {
			return nil, fmt.Errorf("record the wire: %w", err)
		}
		out := bufio.NewWriter(f)
		undo.add(func() error { return errors.Join(out.Flush(), f.Close()) })
		record = func(w wire.Wire) (wire.Wire, error) { return wire.Capture(w, out, clock.Clock{}) }
	}
	return func(w wire.Wire) (wire.Wire, error) {
		w, err := record(w)
		if err == nil && s.faults != (wire.FaultConfig{}) {
			w = wire.WithFaults(w, s.faults)
		}
		return w, err
	}, nil
}
