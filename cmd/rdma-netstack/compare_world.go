package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/rdma-netstack/rdma-netstack/apps/dnsd"
	"github.com/rdma-netstack/rdma-netstack/apps/httpd"
	"github.com/rdma-netstack/rdma-netstack/cmd/rdma-netstack/lab"
	"github.com/rdma-netstack/rdma-netstack/dv"
	"github.com/rdma-netstack/rdma-netstack/dv/simnic"
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

// contender is a server on one of the stacks and the network its clients are in.
type contender struct {
	name   string
	client *lab.Net
}

// sockets are the methods that a server needs of a stack.
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
	return &contender{"the host's stack", client}, compareServe(server, undo)
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
		NIC:                dv.Config{RxQueues: queues, TxQueues: queues},
		Addresses:          []netip.Prefix{netip.MustParsePrefix(compareServer)},
		DuplicateDetection: -1, // no other host is on this link
	}
	serveSim(&cfg.NIC, nic)
	st, err := stack.Open(ctx, cfg)
	if err != nil {
		return nil, err
	}
	undo.add(func() error { return shutdownStack(st) })
	return &contender{"the slice", client}, compareServe(st, undo)
}

// compareServe starts both servers.
func compareServe(at sockets, undo *cleanup) error {
	web, err := httpd.New(httpd.Config{DebugEndpoints: true})
	if err != nil {
		return err
	}
	compareShutdown(web, undo)
	zone, err := memoryFile("compare.zone", demoZone)
	if err != nil {
		return err
	}
	defer zone.Close()
	names, err := dnsd.New(
		dnsd.Config{
			ResponseRate: -1,
			Zones:        []dnsd.Zone{{File: fmt.Sprintf("/proc/self/fd/%d", zone.Fd())}},
		},
	)
	if err != nil {
		return err
	}
	compareShutdown(names, undo)
	ln, err := at.Listen("tcp", ":80")
	if err != nil {
		return fmt.Errorf("listen for HTTP: %w", err)
	}
	go web.Serve(ln)
	pc, err := at.ListenPacket("udp", ":53")
	if err != nil {
		return fmt.Errorf("listen for DNS: %w", err)
	}
	go names.ServeUDP(pc)
	return nil
}

// compareShutdown ends a server with the comparison; its clients have disconnected by then.
func compareShutdown(app server, undo *cleanup) {
	undo.add(func() error {
		ctx, cancel := context.WithTimeout(context.Background(), stopServers)
		defer cancel()
		if err := app.Shutdown(ctx); !errors.Is(err, context.DeadlineExceeded) {
			return err
		}
		return nil
	})
}
