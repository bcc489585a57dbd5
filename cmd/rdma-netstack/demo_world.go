package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rdma-netstack/rdma-netstack/apps/dnsd"
	"github.com/rdma-netstack/rdma-netstack/apps/httpd"
	"github.com/rdma-netstack/rdma-netstack/cmd/rdma-netstack/lab"
	"github.com/rdma-netstack/rdma-netstack/dv"
	"github.com/rdma-netstack/rdma-netstack/internal/probe"
	"github.com/rdma-netstack/rdma-netstack/simnic"
	"github.com/rdma-netstack/rdma-netstack/simnic/wire"
	"github.com/rdma-netstack/rdma-netstack/stack"
)

// station represents one of the three hosts on the demo's wire. The addresses are those that RFC
// 5737, RFC 3849 and RFC 7042 reserve for documentation.
type station struct {
	name   string
	v4, v6 netip.Prefix
	mac    net.HardwareAddr
}

func newStation(name string, host int) station {
	return station{name,
		netip.MustParsePrefix(fmt.Sprintf("192.0.2.%d/24", host)),
		netip.MustParsePrefix(fmt.Sprintf("2001:db8::%d/64", host)),
		// reads like the address
		net.HardwareAddr{0x02, 0x00, 0x5e, 0x00, 0x53, byte(host/10<<4 | host%10)}}
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

// demoPort names the interface in both namespaces.
const demoPort = "eth0"

// kernelPort says where the kernel's own web server of the demo on one address is.
const kernelPort = 8080

// demoZone gives the zone of the demo's DNS server.
const demoZone = `$ORIGIN example.
$TTL 60
@        IN SOA   ns hostmaster 1 3600 600 86400 60
@        IN NS    ns
ns       IN A     192.0.2.10
ns       IN AAAA  2001:db8::10
www      IN A     192.0.2.10
www      IN AAAA  2001:db8::10
netdev   IN A     192.0.2.20
netdev   IN AAAA  2001:db8::20
`

// world holds everything the demo runs.
//
//	namespace "outside"          this process                          namespace "host"
//	client: ping curl dig        HTTP and DNS servers                  kernel HTTP server
//	kernel TCP/IP                stack, link/rdma, dv                  kernel TCP/IP
//	eth0 ──────── wire ───────── software ConnectX ──── netdev side ── eth0
//
// With --address host the stack has the address and the MAC of "host", and the kernel's server is
// at kernelPort.
type world struct {
	flags                 demoFlags
	client, slice, netdev station
	outside, host         *lab.Net
	links                 string // kind
	nic                   *simnic.NIC
	stack                 *stack.Stack
	probe, inside         *probe.Client // in "outside" and in "host"
	load                  *load
	cleanup               cleanup
}

// newWorld makes the world. When it fails it closes everything.
func newWorld(ctx context.Context, f demoFlags) (*world, error) {
	w := &world{flags: f, links: f.links, client: newStation("outside", 1),
		slice: newStation("slice", 10), netdev: newStation("netdev", 20)}
	if f.host {
		w.netdev = newStation("host", 10)
		w.slice = w.netdev
	}
	for _, step := range []func(context.Context) error{w.makeNets, w.connectNIC, w.openStack,
		w.startServers} {
		if err := step(ctx); err != nil {
			return nil, errors.Join(err, w.close())
		}
	}
	var programs []string
	if f.clients == "programs" {
		programs = []string{"ping", "curl", "dig"}
	}
	w.probe, w.inside = probe.New(w.outside, programs...), probe.New(w.host, programs...)
	w.load = &load{probe: probe.New(w.outside), url: w.netdev.url4(), cancel: func() {}}
	w.cleanup.add(func() error { w.load.stop(); return nil })
	return w, nil
}

func (w *world) close() error { return w.cleanup.close() }

func (w *world) makeNets(context.Context) (err error) {
	if w.outside, err = lab.New("outside"); err != nil {
		return err
	}
	w.cleanup.add(w.outside.Close)
	if w.host, err = lab.New("host"); err != nil {
		return err
	}
	w.cleanup.add(w.host.Close)
	return nil
}

// connectNIC makes the NIC and connects its port to "outside" and its netdev side to "host".
func (w *world) connectNIC(context.Context) (err error) {
	if w.nic, err = simnic.New(simnic.Config{MAC: w.netdev.mac}); err != nil {
		return fmt.Errorf("make the software NIC: %w", err)
	}
	w.cleanup.add(w.nic.Close)
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

// bestLinks returns tap where this process may have one.
func bestLinks() string {
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return linkVeth
	}
	unix.Close(fd)
	return linkTAP
}

func (w *world) connectPort(connect func(wire.Wire) error, at *lab.Net, p station,
	middle func(wire.Wire) (wire.Wire, error)) error {
	setup := lab.Setup{MAC: p.mac, MTU: w.nic.MTU(), Addresses: p.addresses()}
	if w.links == linkTAP {
		return at.Do(func() error {
			return connectSpec(connect, wireSpec{kind: linkTAP, name: demoPort}, setup, middle)
		})
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

// near runs f in the namespace whose ports and addresses the stack shares.
func (w *world) near(f func() error) error {
	if w.flags.host {
		return w.host.Do(f)
	}
	return f()
}

func (w *world) openStack(ctx context.Context) error {
	log := warningLog(os.Stderr)
	cfg := stack.Config{Logger: log, NIC: dv.NIC{RxQueues: w.flags.queues.number()}}
	serveSim(&cfg.NIC, w.nic)
	if w.flags.host {
		cfg.Host, cfg.NIC.Model.Facts.Netdev = true, demoPort
	} else {
		cfg.NIC.MAC, cfg.Addresses = w.slice.mac, w.slice.addresses()
		cfg.Addressing.DuplicateDetection = -1 // no other host is on this link
	}
	if w.flags.tamper != nil {
		w.flags.tamper(&cfg)
	}
	if err := w.near(func() (err error) {
		w.stack, err = stack.Open(ctx, cfg)
		return err
	}); err != nil {
		return err
	}
	w.cleanup.add(func() error { return shutdownStack(w.stack) })
	return nil
}

// startServers starts the same web server twice, on the stack and on a kernel socket of the
// netdev's namespace, and a DNS server on the stack.
func (w *world) startServers(context.Context) error {
	at := ":80"
	if w.flags.host {
		at = fmt.Sprintf(":%d", kernelPort)
	}
	onKernel, err := w.host.Listen("tcp", at)
	if err != nil {
		return fmt.Errorf("listen for HTTP by the kernel: %w", err)
	}
	if err := w.serveHTTP(httpd.Config{DebugEndpoints: true}, onKernel); err != nil {
		return err
	}
	return w.near(func() error {
		onStack, err := w.stack.Listen("tcp", ":80")
		if err != nil {
			return fmt.Errorf("listen for HTTP on the slice: %w", err)
		}
		if err := w.serveHTTP(httpd.Config{DebugEndpoints: true,
			Status: func() any { return status(w.stack, w.nic) }}, onStack); err != nil {
			return err
		}
		return w.serveDNS()
	})
}

func (w *world) serveHTTP(cfg httpd.Config, ln net.Listener) error {
	app, err := httpd.New(cfg)
	if err != nil {
		return err
	}
	shutdownWith(&w.cleanup, app)
	go app.Serve(ln)
	return nil
}

func (w *world) serveDNS() error {
	app, err := dnsd.New(dnsd.Config{Zones: []dnsd.Zone{{File: "demo.zone", Text: demoZone}}})
	if err != nil {
		return err
	}
	shutdownWith(&w.cleanup, app)
	pc, err := w.stack.ListenPacket("udp", ":53")
	if err != nil {
		return fmt.Errorf("listen for DNS on the slice: %w", err)
	}
	go app.ServeUDP(pc)
	ln, err := w.stack.Listen("tcp", ":53")
	if err != nil {
		return fmt.Errorf("listen for DNS on the slice: %w", err)
	}
	go app.ServeTCP(ln)
	return nil
}

// stopServers says how long servers have to finish when the demo ends.
const stopServers = time.Second

// shutdownWith ends a server, whose clients have gone by then, with all else.
func shutdownWith(undo *cleanup, app server) {
	undo.add(func() error {
		ctx, cancel := context.WithTimeout(context.Background(), stopServers)
		defer cancel()
		if err := app.Shutdown(ctx); !errors.Is(err, context.DeadlineExceeded) {
			return err
		}
		return nil
	})
}
