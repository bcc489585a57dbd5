package main

import (
	"context"
	"fmt"
	"net"

	"github.com/rdma-netstack/rdma-netstack/internal/probe"
)

// burstSize gives the number of raw frames that each of these checks sends. Other traffic of the
// slice meanwhile (address resolution) is a frame or two, and cannot be mistaken for a burst.
const burstSize = 64

// quietTries says how often a burst is repeated to find a moment without such other traffic.
const quietTries = 10

// thirdMAC is a MAC that no party has.
var thirdMAC = net.HardwareAddr{0x02, 0x00, 0x5e, 0x00, 0x53, 0x99}

// tapped runs a check with raw ports open.
func (w *world) tapped(check func(t *frameMonitor) (string, error)) (string, error) {
	t, err := w.newFrameMonitor()
	if err != nil {
		return "", err
	}
	defer t.close()
	return check(t)
}

// received runs one burst and returns how many frames the NIC passed to the slice in addition to
// our own echo requests.
func (t *frameMonitor) received(ctx context.Context, frames [][]byte) (int, error) {
	before := t.w.nic.Counters().Slice.RxPackets
	err := t.burst(ctx, frames...)
	return int(t.w.nic.Counters().Slice.RxPackets - before - t.asked), err
}

// checkIsolation sends frames for a third party: neither owner of the port may receive one.
func (w *world) checkIsolation(ctx context.Context) (string, error) {
	return w.tapped(func(t *frameMonitor) (string, error) {
		others, nobodys := 0, w.nic.Counters().Drops.SteerMissed
		for range quietTries {
			var frames [][]byte
			for range burstSize {
				frames = append(frames, t.echo(thirdMAC, w.slice.v4.Addr()))
			}
			got, err := t.received(ctx, frames)
			if err != nil {
				return "", err
			}
			if n := count(t.onHost,
				func(s probe.Frame) bool { return sameMAC(s.Dst, thirdMAC) }); n > 0 {
				return "", fmt.Errorf("%d of %d frames for %s reached the netdev", n, burstSize,
					thirdMAC)
			}
			if n := t.echoAnswers(); n > 0 {
				return "", fmt.Errorf("%d of %d echo requests for %s were answered", n, burstSize,
					thirdMAC)
			}
			if others = got; others <= w.strays() {
				missed := w.nic.Counters().Drops.SteerMissed - nobodys
				return fmt.Sprintf(
					"%d frames for a third MAC, %s: neither owner got one, the NIC dropped %d as "+
						"nobody's",
					burstSize,
					thirdMAC,
					missed,
				), nil
			}
		}
		return "", fmt.Errorf("of %d frames for %s the slice got %d", burstSize, thirdMAC, others)
	})
}

// strays returns how many extra frames the wire may produce by itself: none, unless it is
// configured to duplicate.
func (w *world) strays() int {
	if w.flags.faulty() {
		return burstSize / 4
	}
	return 0
}

// echoAnswers returns how many echo requests of bursts were answered.
func (t *frameMonitor) echoAnswers() int {
	return count(
		t.answers,
		func(s probe.Frame) bool { return s.EchoReply && s.ID == t.id && !t.pings[s.Seq] },
	)
}

// checkBroadcast sends broadcast frames: both owners must receive each.
func (w *world) checkBroadcast(ctx context.Context) (string, error) {
	return w.tapped(func(t *frameMonitor) (string, error) {
		var frames [][]byte
		for range burstSize {
			frames = append(
				frames,
				probe.EtherFrame(probe.Broadcast, w.client.mac,
					probe.Experimental, []byte("to everybody")),
			)
		}
		onSlice, err := t.received(ctx, frames)
		if err != nil {
			return "", err
		}
		onNetdev := count(t.onHost,
			func(s probe.Frame) bool { return s.EtherType == probe.Experimental })
		if want := burstSize - w.strays()*2; onSlice < want || onNetdev < want {
			return "", fmt.Errorf(
				"of %d broadcasts the slice got %d and the netdev %d",
				burstSize,
				onSlice,
				onNetdev,
			)
		}
		return fmt.Sprintf("%d broadcasts, both owners got each", burstSize), nil
	})
}

// checkNetdevMAC sends the netdev frames with the slice's IP address in them, which the slice must
// not answer, and ARP requests for each address, which only the owner may answer.
func (w *world) checkNetdevMAC(ctx context.Context) (string, error) {
	return w.tapped(func(t *frameMonitor) (string, error) {
		var frames [][]byte
		for range burstSize {
			frames = append(frames, t.echo(w.netdev.mac, w.slice.v4.Addr()))
		}
		owners := []station{w.slice, w.netdev}
		for _, p := range owners {
			frames = append(frames, probe.ARPFrame(w.client.mac, w.client.v4.Addr(), p.v4.Addr()))
		}
		if err := t.burst(ctx, frames...); err != nil {
			return "", err
		}
		if n := t.echoAnswers(); n > 0 {
			return "", fmt.Errorf(
				"%d of %d echo requests for the slice's address at the netdev's MAC were answered",
				n,
				burstSize,
			)
		}
		for _, p := range owners {
			if err := t.onlyAnswers(p); err != nil {
				return "", err
			}
		}
		return fmt.Sprintf(
			"%d echo requests for the slice at the netdev's MAC: no answer; ARP: each owner "+
				"answers for itself",
			burstSize,
		), nil
	})
}

// onlyAnswers requires ARP replies for the party's address from the party's MAC, and none from
// another.
func (t *frameMonitor) onlyAnswers(p station) error {
	about := func(s probe.Frame) bool { return s.ARPSender == p.v4.Addr() }
	right := count(t.answers, func(s probe.Frame) bool { return about(s) && sameMAC(s.Src, p.mac) })
	switch all := count(t.answers, about); {
	case all != right:
		return fmt.Errorf(
			"%d ARP replies for %s of %s came from another MAC than %s",
			all-right,
			p.v4.Addr(),
			p.name,
			p.mac,
		)
	case right == 0 && !t.w.flags.faulty():
		return fmt.Errorf("no ARP reply for %s of %s", p.v4.Addr(), p.name)
	}
	return nil
}
