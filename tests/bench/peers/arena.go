package main

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"slices"

	"github.com/rdma-netstack/rdma-netstack/cmd/rdma-netstack/lab"
)

// arena is one configuration, up and running.
type arena struct {
	*peer
	client, cable *lab.Net // where the client runs, and where its cable ends
	server        *proc
	loads         *proc // the load process; the server itself in memory
	relay         *proc
	many          bool // memory is also measured with very many connections
	undo          []func() error
}

// openArena sets a configuration up. When it fails it closes everything.
func openArena(p *peer, zone string) (*arena, error) {
	a := &arena{peer: p}
	if err := a.open(zone); err != nil {
		return nil, errors.Join(fmt.Errorf("set %s up: %w", p.Name, err), a.close())
	}
	return a, nil
}

func (a *arena) close() (err error) {
	for _, undo := range slices.Backward(a.undo) {
		err = errors.Join(err, undo())
	}
	a.undo = nil
	return err
}

func (a *arena) open(zone string) (err error) {
	if a.client, err = a.net("client"); err != nil {
		return err
	}
	if err := a.client.Do(clientSettings); err != nil {
		return err
	}
	spec := childSpec{Server: &a.End, Procs: a.Procs, Zone: zone}
	if a.Apart {
		n, err := serverSide.processor()
		if err := errors.Join(err, a.client.Do(clientSide.keepThread)); err != nil {
			return err
		}
		spec.Processor = &n
	}
	switch a.Plumbing {
	case plumbMem:
		spec.Pair, spec.Behind = true, true
		a.server, err = a.start(a.client, spec)
		a.loads = a.server
		return err
	case plumbTAP:
		err = a.openTAP(spec)
	case plumbRelay, plumbMTU, plumbWAN:
		err = a.openRelay(spec)
	default:
		err = a.openVeth(spec)
	}
	if err == nil {
		a.loads, err = a.start(a.client,
			childSpec{Client: &end{Stack: stackKernel}, Behind: true})
	}
	return err
}

func (a *arena) net(name string) (*lab.Net, error) {
	n, err := lab.New(a.Name + " " + name)
	if err == nil {
		a.undo = append(a.undo, n.Close)
	}
	return n, err
}

func (a *arena) start(at *lab.Net, spec childSpec) (*proc, error) {
	p, err := startChild(at, spec)
	if err == nil {
		a.undo = append(a.undo, p.close)
	}
	return p, err
}

// up gives the kernel's side of the cable its address.
func up(at *lab.Net, mac net.HardwareAddr, prefix ...netip.Prefix) error {
	return at.Do(func() error { return lab.Up(port, lab.Setup{MAC: mac, Addresses: prefix}) })
}

func upClient(at *lab.Net) error {
	return up(at, clientMAC, append([]netip.Prefix{clientPrefix}, morePrefixes...)...)
}

// upCable brings the server's side up, with its address if it is the kernel's.
func (a *arena) upCable(spec childSpec) error {
	address := []netip.Prefix{serverPrefix}
	if spec.Server.Stack != stackKernel {
		address = nil
	}
	return errors.Join(up(a.cable, serverMAC, address...), a.cable.Do(serverSettings))
}

// openTAP has the server make the TAP that the client's kernel uses.
func (a *arena) openTAP(spec childSpec) (err error) {
	if a.server, err = a.start(a.client, spec); err != nil {
		return err
	}
	return upClient(a.client)
}

func (a *arena) openRelay(spec childSpec) (err error) {
	if a.cable, err = a.net("server"); err != nil {
		return err
	}
	if a.relay, err = a.start(a.client,
		childSpec{Relay: a.cable.Path(), WAN: a.wan(), Processor: spec.Processor}); err != nil {
		return err
	}
	if err := errors.Join(upClient(a.client), a.upCable(spec)); err != nil {
		return err
	}
	if a.Plumbing == plumbMTU {
		if err := errors.Join(oneSegment(a.client), oneSegment(a.cable)); err != nil {
			return err
		}
	}
	a.server, err = a.start(a.cable, spec)
	return err
}

func (a *arena) openVeth(spec childSpec) (err error) {
	if a.cable, err = a.net("server"); err != nil {
		return err
	}
	if err := lab.Cable(a.client, port, a.cable, port); err != nil {
		return err
	}
	if err := errors.Join(upClient(a.client), a.upCable(spec)); err != nil {
		return err
	}
	if a.plain() {
		if err := errors.Join(offloadsOff(a.client), offloadsOff(a.cable),
			queueInFront(a.client)); err != nil {
			return err
		}
	}
	a.server, err = a.start(a.cable, spec)
	return err
}

// offloadsOff makes the cable carry only frames within its MTU, with checksums.
func offloadsOff(at *lab.Net) error {
	return command(at, "ethtool", "-K", port, "tx", "off", "tso", "off", "gso", "off", "sg", "off",
		"rxvlan", "off", "txvlan", "off")
}

// queueInFront makes senders wait for the cable, as a NIC's queue does. Without it a veth pair
// drops what exceeds 256 frames while an XDP program is attached at the other end (linux 6.16).
func queueInFront(at *lab.Net) error {
	return command(at, "tc", "qdisc", "add", "dev", port, "root", "pfifo", "limit", "1000")
}

// oneSegment makes the kernel pass no packet to the cable that is longer than its MTU.
func oneSegment(at *lab.Net) error {
	return command(at, "ip", "link", "set", "dev", port, "gso_max_segs", "1")
}

func command(at *lab.Net, name string, args ...string) error {
	cmd := exec.Command(name, args...)
	if err := at.Start(cmd); err != nil {
		return err
	}
	if err := cmd.Wait(); err != nil {
		return fmt.Errorf("%v: %w", cmd.Args, err)
	}
	return nil
}

// clientSettings and serverSettings keep a round from using up the ports of the next: the kernel
// deletes connections in TIME-WAIT at once.
func clientSettings() error {
	return sysctl(map[string]string{"ip_local_port_range": "1024 65535",
		"tcp_max_tw_buckets": "1"})
}

func serverSettings() error {
	return sysctl(map[string]string{"tcp_max_tw_buckets": "1"})
}

// sysctl sets values of net.ipv4 in the calling thread's namespace.
func sysctl(values map[string]string) error {
	for name, value := range values {
		if err := os.WriteFile("/proc/sys/net/ipv4/"+name, []byte(value), 0); err != nil {
			return fmt.Errorf("set net.ipv4.%s to %s: %w", name, value, err)
		}
	}
	return nil
}
