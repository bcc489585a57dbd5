package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os/exec"
	"runtime"

	"github.com/rdma-netstack/rdma-netstack/apps/dnsd"
	"github.com/rdma-netstack/rdma-netstack/apps/httpd"
	"github.com/rdma-netstack/rdma-netstack/cmd/rdma-netstack/lab"
	"github.com/rdma-netstack/rdma-netstack/dv"
	"github.com/rdma-netstack/rdma-netstack/simnic"
	"github.com/rdma-netstack/rdma-netstack/stack"
)

// Both sides have the same addresses, each in a network of its own.
const (
	comparePort   = "eth0"
	compareClient = "192.0.2.1/24"
	compareServer = "192.0.2.10/24"
	compareHTTP   = "192.0.2.10:80"
	compareDNS    = "192.0.2.10:53"
)

// contender holds the two servers on one of the stacks and the network their clients are in.
type contender struct {
	name      string
	http, dns string // ADDRESS:PORT
	client    clientNet
}

// clientNet represents a network as its clients see it: a *lab.Net, or that of this machine.
type clientNet interface {
	Do(fn func() error) error
	DialContext(ctx context.Context, network, address string) (net.Conn, error)
	Start(cmd *exec.Cmd) error
}

// scene holds what is compared.
type scene struct {
	host, slice         *contender
	hostWire, sliceWire string // how the clients reach them
	intro, note         string // before and after the results
}

// localScene makes both sides on this machine.
func localScene(ctx context.Context, queues int, undo *cleanup) (s *scene, err error) {
	s = &scene{
		hostWire: "veth", sliceWire: "TAP and software NIC",
		intro: fmt.Sprintf("The same servers on the host's stack (%s, veth) and on a slice "+
			"(software NIC, TAP);\n%d processors for clients, servers and NIC",
			kernelRelease(), runtime.NumCPU()),
		note: "What the software NIC costs is in the slice's figures, and a veth pair costs next " +
			"to nothing: see --help.\n",
	}
	if s.host, err = newHostSide(undo); err != nil {
		return nil, err
	}
	s.slice, err = newSliceSide(ctx, queues, undo)
	return s, err
}

// sockets lists the methods that a server needs of a stack.
type sockets interface {
	Listen(network, address string) (net.Listener, error)
	ListenPacket(network, address string) (net.PacketConn, error)
}

func compareUp(n *lab.Net, address string) error {
	return n.Do(func() error {
		return lab.Up(comparePort,
			lab.Setup{Addresses: []netip.Prefix{netip.MustParsePrefix(address)}})
	})
}

func compareNet(name string, undo *cleanup) (*lab.Net, error) {
	n, err := lab.New(name)
	if err == nil {
		undo.add(n.Close)
	}
	return n, err
}

// newHostSide serves from kernel sockets of a namespace behind a veth pair.
func newHostSide(undo *cleanup) (*contender, error) {
	client, err := compareNet("clients of the host's stack", undo)
	if err != nil {
		return nil, err
	}
	server, err := compareNet("host's stack", undo)
	if err != nil {
		return nil, err
	}
	if err := lab.Cable(client, comparePort, server, comparePort); err != nil {
		return nil, err
	}
	if err := errors.Join(compareUp(client, compareClient),
		compareUp(server, compareServer)); err != nil {
		return nil, err
	}
	return localSide("the host's stack", client), compareServe(server, ":80", ":53", undo)
}

// newSliceSide serves from a slice of a software NIC that is connected to a TAP interface.
func newSliceSide(ctx context.Context, queues int, undo *cleanup) (*contender, error) {
	client, err := compareNet("clients of the slice", undo)
	if err != nil {
		return nil, err
	}
	nic, err := simnic.New(simnic.Config{})
	if err != nil {
		return nil, fmt.Errorf("make the software NIC: %w", err)
	}
	undo.add(nic.Close)
	setup := lab.Setup{MTU: nic.MTU(),
		Addresses: []netip.Prefix{netip.MustParsePrefix(compareClient)}}
	err = client.Do(func() error {
		return connectSpec(nic.ConnectWire, wireSpec{kind: "tap", name: comparePort}, setup, nil)
	})
	if err != nil {
		return nil, err
	}
	cfg := stack.Config{
		NIC:        dv.NIC{RxQueues: queues},
		Addresses:  []netip.Prefix{netip.MustParsePrefix(compareServer)},
		Addressing: stack.AddressOptions{DuplicateDetection: -1}, // no other host is on this link
	}
	serveSim(&cfg.NIC, nic)
	st, err := stack.Open(ctx, cfg)
	if err != nil {
		return nil, err
	}
	undo.add(func() error { return shutdownStack(st) })
	return localSide("the slice", client), compareServe(st, ":80", ":53", undo)
}

func localSide(name string, client *lab.Net) *contender {
	return &contender{name: name, http: compareHTTP, dns: compareDNS, client: client}
}

// compareServe starts both servers.
func compareServe(at sockets, http, dns string, undo *cleanup) error {
	web, err := httpd.New(httpd.Config{DebugEndpoints: true})
	if err != nil {
		return err
	}
	shutdownWith(undo, web)
	names, err := dnsd.New(dnsd.Config{ResponseRate: -1,
		Zones: []dnsd.Zone{{File: "compare.zone", Text: demoZone}}})
	if err != nil {
		return err
	}
	shutdownWith(undo, names)
	ln, err := at.Listen("tcp", http)
	if err != nil {
		return fmt.Errorf("listen for HTTP on %s: %w", http, err)
	}
	go web.Serve(ln)
	pc, err := at.ListenPacket("udp", dns)
	if err != nil {
		return fmt.Errorf("listen for DNS on %s: %w", dns, err)
	}
	go names.ServeUDP(pc)
	return nil
}
