//go:build linux

package main

import (
	"context"
	"encoding/binary"
	"fmt"
	"net/netip"
	"os"
	"os/signal"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/rdma-netstack/rdma-netstack/dv"
)

// rules is the subcommand: it opens a device in host mode, adds the rules that its arguments name,
// and prints each frame that comes in; the rules with their counts at SIGUSR1. SIGTERM ends it.
func rules(args []string) error {
	dev, err := dv.Open(context.Background(), dv.Config{NIC: dv.NIC{Device: "mlx5_0"},
		HostMode: true})
	if err != nil {
		return err
	}
	for _, a := range args {
		r, err := parseRule(a)
		if err != nil {
			return err
		}
		if _, err := dev.AddRule(r); err != nil {
			fmt.Println("refused:", err)
		}
	}
	stop, ask := make(chan os.Signal, 1), make(chan os.Signal, 1)
	signal.Notify(stop, unix.SIGTERM)
	signal.Notify(ask, unix.SIGUSR1)
	fmt.Println("steering")
	var worker sync.WaitGroup
	worker.Go(func() { printFrames(dev.Rx(0)) })
	for over := false; !over; {
		select {
		case <-ask:
			for _, r := range dev.Rules() {
				fmt.Printf("rule %d %s to %s: %d packets\n", r.Priority, r.Match, r.To, r.Packets)
			}
		case <-stop:
			over = true
		}
	}
	dev.Stop()
	worker.Wait()
	return dev.Close()
}

// parseRule reads PRIORITY/tcp|udp/ADDRESS/PORT/PORTS.
func parseRule(s string) (r dv.HostRule, err error) {
	var proto, addr string
	for i, c := range s {
		if c == '/' {
			s = s[:i] + " " + s[i+1:]
		}
	}
	if _, err := fmt.Sscan(s, &r.Priority, &proto, &addr, &r.Port, &r.Ports); err != nil {
		return r, fmt.Errorf("rule %q: %w", s, err)
	}
	r.Proto = map[string]uint8{"tcp": unix.IPPROTO_TCP, "udp": unix.IPPROTO_UDP}[proto]
	r.Addr, err = netip.ParseAddr(addr)
	return r, err
}

// printFrames prints "got PROTOCOL PORT" for each frame, until the device stops.
func printFrames(q *dv.RxQueue) {
	pkts := make([]dv.Packet, 64)
	for {
		n := q.Poll(pkts)
		if n == 0 {
			q.Arm()
			if n = q.Poll(pkts); n == 0 && q.Wait() != nil {
				return
			}
		}
		for _, p := range pkts[:n] {
			ip := p.Data[14:]
			proto, header := ip[9], 20
			if ip[0]>>4 == 6 {
				proto, header = ip[6], 40
			}
			fmt.Println("got", proto, binary.BigEndian.Uint16(ip[header+2:]))
		}
		q.Release(pkts[:n])
	}
}
