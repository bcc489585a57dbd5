package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/rdma-netstack/rdma-netstack/dv"
	"github.com/rdma-netstack/rdma-netstack/simnic"
	"github.com/rdma-netstack/rdma-netstack/simnic/kernel"
	"github.com/rdma-netstack/rdma-netstack/stack"
)

// slice holds our part of a port and the stack on it.
type slice struct {
	stack     *stack.Stack
	sim       *simnic.NIC // nil on hardware
	addresses []netip.Prefix
	whole     []netip.Prefix // all addresses of these are ours, too
	about     string         // the device
	rates     rates          // of accepted connections
	cleanup   cleanup
}

// openSlice opens the device that the flags name. When it fails it closes everything.
func openSlice(ctx context.Context, f serveFlags, log *slog.Logger) (*slice, error) {
	s := &slice{about: f.device, whole: f.whole, rates: f.rates}
	if err := s.open(ctx, f, log); err != nil {
		return nil, errors.Join(err, s.cleanup.close())
	}
	return s, nil
}

func (s *slice) open(ctx context.Context, f serveFlags, log *slog.Logger) error {
	if f.device == simDevice {
		if err := s.openSim(&f, log); err != nil {
			return err
		}
	}
	filter, err := readFilter(f.filter)
	if err != nil {
		return err
	}
	cfg := f.stackConfig(log)
	cfg.Filter = filter
	cfg.NIC = f.nicConfig()
	if s.sim != nil {
		serveSim(&cfg.NIC, s.sim)
	}
	if err := s.meet(ctx, &f, &cfg); err != nil {
		return err
	}
	if f.zeroCopy {
		_ = stack.ZeroCopySend() // devices say in the log what kept them from it
	}
	st, err := stack.Open(ctx, cfg)
	if err == nil && f.zeroCopy && st.Device() == nil {
		log.Warn("--zero-copy changes nothing: there are no rings, and packet sockets copy")
	}
	if errors.Is(err, dv.ErrMAC) {
		return fmt.Errorf("%w (AllowNetdevMAC is --mac netdev)", err)
	}
	if err != nil {
		return err
	}
	s.stack, s.addresses = st, hostAddresses(st, f.addresses)
	s.cleanup.add(func() error { return shutdownStack(st) })
	return s.serveAdmin(&f, log)
}

// readFilter returns the filter with the list in a file; "": with none.
func readFilter(file string) (*stack.Filter, error) {
	if file == "" {
		return stack.NewFilter("")
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("--filter: %w", err)
	}
	f, err := stack.NewFilter(string(text))
	if err != nil {
		return nil, fmt.Errorf("--filter %s: %w", file, err)
	}
	return f, nil
}

// hostAddresses returns the addresses under which others reach the slice: those of the command
// line, then those from the network, or else the link-local one.
func hostAddresses(st *stack.Stack, given []netip.Prefix) []netip.Prefix {
	ours := st.Addrs()
	var all []netip.Prefix
	for _, g := range given {
		for _, p := range ours { // where g may lack the prefix length
			if p.Addr() == g.Addr() {
				all = append(all, p)
			}
		}
	}
	for _, p := range ours {
		if !p.Addr().IsLinkLocalUnicast() && !slices.Contains(all, p) {
			all = append(all, p)
		}
	}
	if len(all) == 0 {
		return ours
	}
	return all
}

// flushTime gives the most time that data of closed connections may take to arrive at shutdown.
const flushTime = time.Second

// shutdownStack closes the stack once everything that was written has arrived, or after flushTime.
func shutdownStack(st *stack.Stack) error {
	ctx, cancel := context.WithTimeout(context.Background(), flushTime)
	defer cancel()
	if err := st.Shutdown(ctx); !errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	return nil
}

// useSim makes the software NIC the device to open.
func useSim(cfg *dv.NIC, nic *simnic.NIC) {
	cfg.Model.Kernel = kernel.Opener(nic)
	cfg.Model.Facts = dv.PortFacts{
		Name:   nic.Config().Name,
		Netdev: nic.Config().Netdev,
		MAC:    nic.MAC(),
		MTU:    nic.MTU(),
	}
}

// serveSim does what useSim does, for a stack: frames wait for buffers. A kernel behind a TAP sends
// 64 KiB at once, 46 frames, many times in a row, and would have to retransmit what a full ring
// drops.
func serveSim(cfg *dv.NIC, nic *simnic.NIC) {
	useSim(cfg, nic)
	cfg.Rings.DelayDrop = true
}

func (f *serveFlags) nicConfig() dv.NIC {
	return dv.NIC{Device: f.device, MAC: f.mac, RxQueues: f.queues.number(), MTU: f.mtu,
		VLAN: f.vlan, Steering: dv.Steering{AllowNetdevMAC: f.netdevMAC},
		Rings: dv.Rings{Striding: f.striding}}
}

// stackConfig returns the stack's configuration from the flags.
func (f *serveFlags) stackConfig(log *slog.Logger) stack.Config {
	return stack.Config{
		Addresses: f.addresses, Gateways: f.gateways, Dynamic: f.sources.dynamic,
		Host: f.sources.host, DSCP: f.dscp, Logger: log,
		Uplink: stack.UplinkOptions{Backend: f.backend, XDP: f.xdp, Fallback: f.fallback,
			MaxOutage: f.maxOutage, RxMode: f.rxMode, Spread: f.spread},
	}.WithLocal(f.whole...)
}

// listenTCP opens a listener whose connections keep to the slice's rates.
func (s *slice) listenTCP(at string) (net.Listener, error) {
	lc := s.stack.ListenConfig()
	lc.Pacing, lc.PacingRules = s.rates.each, s.rates.rules
	return lc.Listen(context.Background(), "tcp", at)
}

// closeAfter closes everything, in an order that lets the last answers out, and joins errors of
// that to err.
func (s *slice) closeAfter(err error) error { return errors.Join(err, s.cleanup.close()) }

// String describes the slice in the start-up line.
func (s *slice) String() string {
	var addrs []string
	for _, p := range s.addresses {
		addrs = append(addrs, p.Addr().String())
	}
	for _, p := range s.whole {
		addrs = append(addrs, p.String())
	}
	if h, ok := s.stack.HostStats(); ok {
		return fmt.Sprintf("%s (the host's own on %s)", strings.Join(addrs, " and "), h.Netdev)
	}
	return fmt.Sprintf("%s (MAC %s, a slice of %s)", strings.Join(addrs, " and "),
		s.stack.HardwareAddr(), s.about)
}

// status returns the part of the web server's status page besides its own counters. sim is nil on
// hardware.
func status(st *stack.Stack, sim *simnic.NIC) any {
	out := map[string]any{
		"mac": st.HardwareAddr().String(), "addresses": st.Addrs(),
		"stack": st.Stats(), "link": st.LinkStats(), "acks": st.ACKStats(),
	}
	if p := st.PacketPort(); p != nil {
		out["device"] = p.Stats()
	} else if d := st.Device(); d != nil {
		out["device"] = d.Stats()
	}
	if h, ok := st.HostStats(); ok {
		out["host"] = h
	}
	health := map[string]any{}
	for _, h := range st.Health() {
		health[h.Reporter] = map[string]any{"state": h.State, "error": h.Error,
			"recover": h.Recover, "since": h.Since}
	}
	out["health"] = health
	if sim != nil {
		out["nic"] = sim.Counters()
	}
	return out
}
