package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rdma-netstack/rdma-netstack/cmd/rdma-netstack/lab"
	"github.com/rdma-netstack/rdma-netstack/dv"
	"github.com/rdma-netstack/rdma-netstack/internal/probe"
	"github.com/rdma-netstack/rdma-netstack/simnic"
	"github.com/rdma-netstack/rdma-netstack/simnic/wire"
	"github.com/rdma-netstack/rdma-netstack/stack"
)

// station is one of the three on the demo's wire. The addresses are those that RFC 5737, RFC 3849
// and RFC 7042 reserve for documentation.
type station struct {
	name   string
	v4, v6 netip.Prefix
	mac    net.HardwareAddr
}

func newStation(name string, host int) station {
	return station{name,
		netip.MustParsePrefix(fmt.Sprintf("192.0.2.%d/24", host)),
		netip.MustParsePrefix(fmt.Sprintf("2001:db8::%d/64", host)),
		net.HardwareAddr{
			0x02,
			0x00,
			0x5e,
			0x00,
			0x53,
			byte(host/10<<4 | host%10),
		}} // reads like the address
}

func (p station) addresses() []netip.Prefix { return []netip.Prefix{p.v4, p.v6} }

// url returns the base of the party's HTTP server.
func (p station) url4() string { return url(netip.AddrPortFrom(p.v4.Addr(), 80)) }
func (p station) url6() string { return url(netip.AddrPortFrom(p.v6.Addr(), 80)) }

// Kinds of links between the software NIC and a namespace.
const (
	linkTAP  = "tap"
	linkVeth = "veth"
)

// demoPort is the interface's name in both namespaces.
const demoPort = "eth0"

// world is everything the demo runs.
//
//	namespace "outside"          this process                          namespace "host"
//	client: ping curl dig        HTTP and DNS servers                  kernel HTTP server
//	kernel TCP/IP                stack, link/rdma, dv                  kernel TCP/IP
//	eth0 ──────── wire ───────── software ConnectX ──── netdev side ── eth0
type world struct {
	flags                 demoFlags
	client, slice, netdev station
	outside, host         *lab.Net
	links                 string // kind
	nic                   *simnic.NIC
	stack                 *stack.Stack
	probe                 *probe.Client
	load                  *load
	cleanup               cleanup
}

// newWorld makes the world. When it fails it closes everything.
func newWorld(ctx context.Context, f demoFlags) (*world, error) {
	w := &world{
		flags: f,
		client: newStation(
			"outside",
			1,
		), slice: newStation("slice", 10), netdev: newStation("netdev", 20),
		links: f.links,
	}
	for _, step := range []func(context.Context) error{w.makeNets, w.makeNIC, w.connectNIC,
		w.openStack, w.startServers} {
		if err := step(ctx); err != nil {
			return nil, errors.Join(err, w.close())
		}
	}
	var programs []string
	if f.clients == "programs" {
		programs = []string{"ping", "curl", "dig"}
	}
	w.probe = probe.New(w.outside, programs...)
	w.load = newLoad(w.outside, w.netdev.url4())
	w.cleanup.add(func() error { w.load.stop(); return nil })
	return w, nil
}

func (w *world) close() error { return w.cleanup.close() }

func (w *world) makeNets(context.Context) (err error) {
	for _, n := range []struct {
		name string
		at   **lab.Net
	}{{"outside", &w.outside}, {"host", &w.host}} {
		if *n.at, err = lab.New(n.name); err != nil {
			return err
		}
		w.cleanup.add((*n.at).Close)
	}
	return nil
}

func (w *world) makeNIC(context.Context) (err error) {
	w.nic, err = simnic.New(simnic.Config{MAC: w.netdev.mac})
	if err != nil {
		return fmt.Errorf("make the software NIC: %w", err)
	}
	w.cleanup.add(w.nic.Close)
	return nil
}

// connectNIC connects the port to "outside" and its netdev side to "host".
func (w *world) connectNIC(context.Context) error {
	if w.links == "" {
		w.links = bestLinks()
	}
	sim := simFlags{record: w.flags.record, faults: w.flags.faults}
	middle, err := sim.middleware(&w.cleanup)
	if err != nil {
		return err
	}
	if err := w.connectPort(w.nic.ConnectWire, w.outside, w.client, middle); err != nil {
		return err
	}
	return w.connectPort(w.nic.ConnectNetdev, w.host, w.netdev, nil)
}

// bestLinks is tap where this process may have one.
func bestLinks() string {
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return linkVeth
	}
	unix.Close(fd)
	return linkTAP
}

func (w *world) connectPort(
	connect func(wire.Wire) error,
	at *lab.Net,
	p station,
	middle func(wire.Wire) (wire.Wire, error),
) error {
	setup := lab.Setup{MAC: p.mac, MTU: w.nic.MTU(), Addresses: p.addresses()}
	open := func() error {
		return connectSpec(connect,
			wireSpec{kind: linkTAP, name: demoPort}, setup, middle)
	}
	if w.links == linkTAP {
		return at.Do(open)
	}
	cables, err := lab.New("cable to " + at.Name())
	if err != nil {
		return err
	}
	w.cleanup.add(cables.Close)
	if err := lab.Cable(at, demoPort, cables, demoPort); err != nil {
		return err
	}
	if err := at.Do(func() error { return lab.Up(demoPort, setup) }); err != nil {
		return err
	}
	return cables.Do(func() error {
		if err := lab.Up(demoPort, lab.Setup{MTU: w.nic.MTU()}); err != nil {
			return err
		}
		return connectSpec(connect, wireSpec{kind: "packet", name: demoPort}, lab.Setup{}, middle)
	})
}

func (w *world) openStack(ctx context.Context) (err error) {
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
	cfg := stack.Config{
		NIC: dv.Config{
			MAC:      w.slice.mac,
			RxQueues: w.flags.queues.number(),
			Logger:   log,
		},
		Addresses:          w.slice.addresses(),
		Logger:             log,
		DuplicateDetection: -1, // no other host is on this link
	}
	serveSim(&cfg.NIC, w.nic)
	if w.flags.tamper != nil {
		w.flags.tamper(&cfg)
	}
	if w.stack, err = stack.Open(ctx, cfg); err != nil {
		return err
	}
	w.cleanup.add(func() error { return shutdownStack(w.stack) })
	return nil
}

// stopServers says how long servers have to finish when the demo ends.
const stopServers = time.Second

// shutdown ends a server when the world does.
func (w *world) shutdown(app server) {
	w.cleanup.add(func() error {
		ctx, cancel := context.WithTimeout(context.Background(), stopServers)
		defer cancel()
		if err := app.Shutdown(ctx); !errors.Is(err, context.DeadlineExceeded) {
			return err
		}
		return nil
	})
}
