package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os/exec"
	"runtime"
	"strconv"

	"github.com/rdma-netstack/rdma-netstack/dv"
)

// thisMachine holds the network of this process: its kernel's sockets.
type thisMachine struct{}

func (thisMachine) Do(fn func() error) error { return fn() }

func (thisMachine) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	var d net.Dialer
	return d.DialContext(ctx, network, address)
}

func (thisMachine) Start(cmd *exec.Cmd) error { return cmd.Start() }

func (thisMachine) Listen(network, address string) (net.Listener, error) {
	return net.Listen(network, address)
}

func (thisMachine) ListenPacket(network, address string) (net.PacketConn, error) {
	return net.ListenPacket(network, address)
}

// remoteScene returns two servers of another machine.
func remoteScene(host, slice netip.AddrPort) *scene {
	side := func(name string, at netip.AddrPort) *contender {
		return &contender{name: name, http: at.String(), dns: at.String(), client: thisMachine{}}
	}
	return &scene{
		host: side("the host's stack", host), slice: side("the slice", slice),
		hostWire: "network", sliceWire: "network",
		intro: fmt.Sprintf("The same servers on another machine's stack (%s) and on a slice (%s);"+
			"\n%s and %d processors for the clients", host, slice, kernelRelease(),
			runtime.NumCPU()),
	}
}

// compareServers serves from the host's address on a device's netdev and from a slice of the
// device, until ctx or the device ends.
func compareServers(ctx context.Context, f compareFlags, out streams) (err error) {
	log := f.slice.log.logger(out.stderr)
	s, err := openSlice(ctx, f.slice, log)
	if err != nil {
		return err
	}
	defer func() { err = s.closeAfter(err) }()
	ours := f.slice.reachable(s)
	host, err := hostAddress(f.slice.device, ours.Addr())
	if err != nil {
		return err
	}
	var undo cleanup
	defer func() { err = errors.Join(undo.close(), err) }()
	port := strconv.Itoa(f.port)
	theirs := net.JoinHostPort(host.String(), port)
	if err := errors.Join(compareServe(thisMachine{}, theirs, theirs, &undo),
		compareServe(s.stack, ":"+port, ":"+port, &undo)); err != nil {
		return err
	}
	fmt.Fprintf(out.stdout, "serving from the host's stack and from a slice of %s; on another "+
		"machine of this network: rdma-netstack compare --host %s --slice %s\n", f.slice.device,
		theirs, ours)
	if err := out.stdout.err(); err != nil {
		return err
	}
	select {
	case <-ctx.Done():
		return nil
	case <-s.stack.Done():
		return s.stack.Err()
	}
}

// hostAddress returns the host's own address on the netdev of a device, of the same family as
// slice.
func hostAddress(device string, slice netip.Addr) (netip.Addr, error) {
	n, err := dv.NetworkOf(dv.NIC{Device: device})
	if err != nil {
		return netip.Addr{}, err
	}
	for _, a := range n.Addresses {
		if a.Is4() == slice.Is4() && a != slice && !a.IsLinkLocalUnicast() {
			return a, nil
		}
	}
	family := map[bool]string{true: "IPv4", false: "IPv6"}[slice.Is4()]
	return netip.Addr{}, fmt.Errorf("the host's stack has no %s address on %s to compare with: "+
		"give it one (ip addr add), or the slice one of the other family", family, n.Netdev)
}
