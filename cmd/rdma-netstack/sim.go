package main

import (
	"bufio"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/rdma-netstack/rdma-netstack/clock"
	"github.com/rdma-netstack/rdma-netstack/cmd/rdma-netstack/internal/subnet"
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
		}, "card that the software NIC imitates: cx4lx, cx5, cx6dx, cx6lx, cx7, bf2, "+
			"bf3, cx8 or cx9 (default cx6dx)",
			oneOf("cx4lx", "cx5", "cx6dx", "cx6lx", "cx7", "bf2", "bf3", "cx8", "cx9")),
		opt("faults", "LIST", &s.faults, "faults of the wire, such as "+
			"drop=1%,reorder=5%,dup=1%,delay=2ms"))
}

// wireWords lists what a wire may begin with.
var wireWords = oneOf("tap:", "packet:", "none")

// simFlagNames lists the flags that need --device sim.
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

// openSim makes the software NIC and connects it. The interface of its wire gets host's addresses,
// if it is made. undo closes what openSim opened, also when that fails.
func openSim(s simFlags, mtu int, host lab.Setup, log *slog.Logger,
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
	host.MTU = nic.MTU()
	return nic, connectSpec(nic.ConnectWire, wire, host, middle)
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

// choosesSubnet reports whether the program chooses the slice's addresses.
func (f *serveFlags) choosesSubnet() bool {
	return f.device == simDevice && len(f.addresses) == 0 && f.sources == (addressSources{})
}

// openSim makes the software NIC after it has settled its addresses. Meanwhile no other server of
// this network namespace does the same, so that two that start at once do not choose the same
// subnet.
func (s *slice) openSim(f *serveFlags, log *slog.Logger) (err error) {
	unlock, err := subnet.Lock()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, unlock()) }()
	if err := f.settle(); err != nil {
		return err
	}
	host, err := hostSide(f.addresses, f.gateways)
	if err != nil && strings.HasPrefix(f.sim.wire, "tap:") {
		return err
	}
	if s.sim, err = openSim(f.sim, f.mtu, host, log, &s.cleanup); err != nil {
		return err
	}
	s.about = "the software NIC on " + f.sim.wire
	if strings.HasPrefix(f.sim.wire, "tap:") && len(host.Addresses) > 0 {
		s.about += ", where this machine is " + listed(host.Addresses)
	}
	return nil
}

// settle chooses addresses in subnets that nothing on this machine uses, or refuses given addresses
// that are in use.
func (f *serveFlags) settle() error {
	wire, err := parseWireSpec(f.sim.wireFlag, f.sim.wire)
	if err != nil {
		return err
	}
	ours := ""
	if wire.kind == "tap" { // addresses of a persistent TAP interface are meant for us
		ours = wire.name
	}
	uses, err := subnet.InUse(ours)
	if err != nil {
		return err
	}
	if f.choosesSubnet() {
		return f.pick(uses, wire)
	}
	for _, p := range f.addresses {
		if err := conflictError(p, wire, uses); err != nil {
			return err
		}
	}
	return nil
}

func listed(all []netip.Prefix) string {
	var texts []string
	for _, p := range all {
		texts = append(texts, p.String())
	}
	return strings.Join(texts, " and ")
}

// The last byte of the slice's address in a chosen subnet; both print as "10".
const (
	slicePart4 = 10
	slicePart6 = 0x10
)

// pick chooses an address of each IP version. A TAP interface gets none of IPv6 where the kernel
// has IPv6 off.
func (f *serveFlags) pick(uses []subnet.Use, wire wireSpec) error {
	v4, err := subnet.Free4(uses)
	var v6 netip.Prefix
	if err == nil && (wire.kind != "tap" || hasIPv6()) {
		v6, err = subnet.Free6(uses)
	}
	if err != nil {
		return fmt.Errorf("%w; choose an --address", err)
	}
	f.addresses = []netip.Prefix{within(v4, slicePart4)}
	if v6.IsValid() {
		f.addresses = append(f.addresses, within(v6, slicePart6))
	}
	return nil
}

// within returns the address of a subnet that ends in last.
func within(p netip.Prefix, last byte) netip.Prefix {
	b := p.Addr().AsSlice()
	b[len(b)-1] = last
	a, _ := netip.AddrFromSlice(b)
	return netip.PrefixFrom(a, p.Bits())
}

// conflictError says what uses an address that would be taken from the machine: any address of its
// subnet if an interface is made for it, only the address itself on an existing network.
func conflictError(p netip.Prefix, wire wireSpec, uses []subnet.Use) error {
	for _, u := range uses {
		switch {
		case wire.kind == "tap" && p.Bits() >= 0 && u.Prefix.Overlaps(p):
			return fmt.Errorf(
				"--address %s: %s, and interface %s would take that away; give another subnet, "+
					"or none: then a free one is chosen",
				p,
				u.By,
				wire.name,
			)
		case wire.kind == "packet" && u.Prefix.Addr() == p.Addr():
			return fmt.Errorf("--address %s: %s; give the slice an address of its own", p, u.By)
		}
	}
	return nil
}

// hasIPv6 reports whether a new interface of this namespace may have IPv6 addresses.
func hasIPv6() bool {
	off, err := os.ReadFile("/proc/sys/net/ipv6/conf/default/disable_ipv6")
	return err == nil && strings.TrimSpace(string(off)) == "0"
}

// hostSide returns the address that the machine itself gets on the wire's interface for each
// address of the slice: the gateway if one is in the subnet, else the subnet's first free address.
// For an address without a subnet it is the gateway, unless another address has a subnet.
func hostSide(ours []netip.Prefix, gateways []netip.Addr) (host lab.Setup, err error) {
	for _, p := range ours {
		switch a := p.Addr(); {
		case p.Bits() < 0: // the subnet exists already
		case !p.IsSingleIP():
			host.Addresses = append(host.Addresses,
				netip.PrefixFrom(neighbour(p, ours, gateways), p.Bits()))
		default:
			host.OnLink = append(host.OnLink, a)
			alike := func(g netip.Addr) bool { return g.Is4() == a.Is4() }
			subnet := func(o netip.Prefix) bool { return alike(o.Addr()) && !o.IsSingleIP() }
			if at := slices.IndexFunc(gateways, alike); at >= 0 {
				g := gateways[at].WithZone("")
				own := netip.PrefixFrom(g, g.BitLen())
				if !slices.Contains(host.Addresses, own) {
					host.Addresses = append(host.Addresses, own)
				}
			} else if !slices.ContainsFunc(ours, subnet) {
				err = fmt.Errorf("--address %s: without a subnet or a --gateway the server "+
					"reaches nobody; give one, which this machine then is on the wire", p)
			}
		}
	}
	return host, err
}

func neighbour(p netip.Prefix, ours []netip.Prefix, gateways []netip.Addr) netip.Addr {
	for _, g := range gateways {
		if p.Contains(g) {
			return g
		}
	}
	first := p.Masked().Addr()
	a := first.Next()
	for isOurs(a, ours) {
		a = a.Next()
	}
	if !p.Contains(a) { // of two addresses ours is the second (RFC 3021, RFC 6164)
		return first
	}
	return a
}

func isOurs(a netip.Addr, ours []netip.Prefix) bool {
	for _, p := range ours {
		if p.Addr() == a {
			return true
		}
	}
	return false
}
