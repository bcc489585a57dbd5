package dv_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net"
	"testing"
	"time"

	"github.com/rdma-netstack/rdma-netstack/dv"
	"github.com/rdma-netstack/rdma-netstack/simnic"
	"github.com/rdma-netstack/rdma-netstack/simnic/kernel"
	"github.com/rdma-netstack/rdma-netstack/simnic/wire"
)

// Who gets which frame: ours to us, copies of broadcast and multicast to both,
// Linux' to Linux, a stranger's to nobody.
func TestSlice(t *testing.T) {
	for _, c := range []struct {
		name         string
		cfg          dv.Config
		dst          net.HardwareAddr
		ours, theirs int
	}{
		{"our MAC", dv.Config{}, ourMAC, 1, 0},
		{"netdev's MAC", dv.Config{}, netdevMAC, 0, 1},
		{"third MAC", dv.Config{}, otherMAC, 0, 0},
		{"broadcast", dv.Config{}, broadcast, 1, 1},
		{"IPv6 multicast", dv.Config{}, net.HardwareAddr{0x33, 0x33, 0xff, 1, 2, 3}, 1, 1},
		{"IPv4 multicast", dv.Config{}, net.HardwareAddr{0x01, 0x00, 0x5e, 0x7f, 2, 3}, 1, 1},
		{"other multicast", dv.Config{}, net.HardwareAddr{0x01, 0x80, 0xc2, 0, 0, 0}, 0, 1},
		{"third MAC, promiscuous",
			dv.Config{NIC: dv.NIC{Steering: dv.Steering{Promiscuous: true}}}, otherMAC, 1, 0},
		{"netdev's MAC, promiscuous",
			dv.Config{NIC: dv.NIC{Steering: dv.Steering{Promiscuous: true}}}, netdevMAC, 1, 0},
		{"broadcast, promiscuous",
			dv.Config{NIC: dv.NIC{Steering: dv.Steering{Promiscuous: true}}}, broadcast, 1, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			for _, queues := range []int{1, 4} {
				c.cfg.RxQueues = queues
				s, d := usual(t, c.cfg)
				s.wire.send(t, frame(c.dst, peerMAC, 0x0806, 60))
				got := 0
				for i := range queues {
					got += len(poll(d.Rx(i)))
				}
				if theirs := len(s.netdev.drain()); got != c.ours || theirs != c.theirs {
					t.Errorf("%d queues: %d to us and %d to the netdev, want %d and %d", queues,
						got, theirs, c.ours, c.theirs)
				}
			}
		})
	}
}

// Flows of every class spread over the queues, each to the one that QueueFor
// says, with the hash that it was computed from; and with the default key the
// way back has the same queue.
func TestRSS(t *testing.T) {
	for name, key := range map[string]dv.RSSKey{"symmetric": {},
		"microsoft": dv.MicrosoftRSSKey()} {
		t.Run(name, func(t *testing.T) {
			s, d := usual(t, dv.Config{NIC: dv.NIC{RxQueues: 4}, RSSKey: key})
			used := map[string]map[int]bool{}
			for i := range 64 {
				for class, f := range flows(i) {
					s.wire.send(t, packet(f.Src, f.Dst, f.Proto, 30))
					queue := onlyQueue(t, d, class)
					if want := d.QueueFor(f); queue != want {
						t.Fatalf("%s flow %d came to queue %d, QueueFor says %d", class, i, queue,
							want)
					}
					back := d.QueueFor(dv.Flow{Proto: f.Proto, Src: f.Dst, Dst: f.Src})
					if name == "symmetric" && back != queue {
						t.Fatalf("%s flow %d: queue %d, its reverse %d", class, i, queue, back)
					}
					if used[class] == nil {
						used[class] = map[int]bool{}
					}
					used[class][queue] = true
				}
			}
			for class, queues := range used {
				if len(queues) != 4 {
					t.Errorf("%s: only %d of 4 queues used", class, len(queues))
				}
			}
		})
	}
}

// Frames with a tag, which stays in, go where those without go; fragments, the
// first one too, go where their addresses say.
func TestRSSOfTaggedAndFragments(t *testing.T) {
	s, d := usual(t, dv.Config{NIC: dv.NIC{RxQueues: 4}})
	used := map[int]bool{}
	for i := range 32 {
		for class, f := range flows(i) {
			plain := packet(f.Src, f.Dst, f.Proto, 30)
			tagged := append(append(bytes.Clone(plain[:12]), 0x81, 0x00, 0x00, 0x07), plain[12:]...)
			s.wire.send(t, tagged)
			queue := onlyQueue(t, d, class)
			if want := d.QueueFor(f); queue != want {
				t.Fatalf("%s flow %d with a tag came to queue %d, want %d", class, i, queue, want)
			}
			used[queue] = true
		}
		f := flows(i)["UDP over IPv4"]
		first := packet(f.Src, f.Dst, 17, 32)
		first[20] |= 0x20 // more fragments
		later := bytes.Clone(first)
		later[20], later[21] = 0, 5 // offset 40
		f.Proto = 0
		for _, fragment := range [][]byte{first, later} {
			fragment[24], fragment[25] = 0, 0
			binary.BigEndian.PutUint16(fragment[24:], ^checksum(fragment[14:34]))
			s.wire.send(t, fragment)
			if queue := onlyQueue(t, d, "fragment"); queue != d.QueueFor(f) {
				t.Fatalf("fragment of flow %d came to queue %d, want %d", i, queue, d.QueueFor(f))
			}
		}
	}
	if len(used) != 4 {
		t.Errorf("%d of 4 queues used", len(used))
	}
}

// What the NIC says of right frames, wrong ones and those it cannot judge.
func TestRxVerdicts(t *testing.T) {
	f := flows(0)
	tcp, udp6 := f["TCP over IPv4"], f["UDP over IPv6"]
	good := packet(tcp.Src, tcp.Dst, 6, 100)
	badTCP, badIP, fragment := bytes.Clone(good), bytes.Clone(good), bytes.Clone(good)
	badTCP[60] ^= 1
	badIP[22] ^= 1 // TTL
	fragment[20] |= 0x20
	binary.BigEndian.PutUint16(fragment[24:], 0)
	binary.BigEndian.PutUint16(fragment[24:], ^checksum(fragment[14:34]))
	s, d := usual(t, dv.Config{})
	for _, c := range []struct {
		name  string
		frame []byte
		want  dv.RxFlags
	}{
		{"right", good, dv.RxIPv4 | dv.RxTCP | dv.RxL3OK | dv.RxL4OK},
		{"wrong TCP checksum", badTCP, dv.RxIPv4 | dv.RxTCP | dv.RxL3OK},
		{"wrong header checksum", badIP, dv.RxIPv4 | dv.RxTCP},
		{"fragment", fragment, dv.RxIPv4 | dv.RxFragment | dv.RxL3OK},
		{"right UDP over IPv6", packet(udp6.Src, udp6.Dst, 17, 33),
			dv.RxIPv6 | dv.RxUDP | dv.RxL3OK | dv.RxL4OK},
		{"ARP", frame(ourMAC, peerMAC, 0x0806, 60), 0},
	} {
		s.wire.send(t, c.frame)
		got := poll(d.Rx(0))
		if len(got) != 1 || !bytes.Equal(got[0].Data, c.frame) {
			t.Errorf("%s: %d frames", c.name, len(got))
			continue
		}
		if flags := got[0].Flags &^ dv.RxHash; flags != c.want {
			t.Errorf("%s: flags %09b, want %09b", c.name, flags, c.want)
		}
	}
}

// Frames that nobody polls fill the ring and are then dropped and counted by
// the NIC; reception goes on when they are released.
func TestOutOfBuffer(t *testing.T) {
	s, d := usual(t, dv.Config{NIC: dv.NIC{Rings: dv.Rings{RxQueueSize: 64}},
		Tuning: dv.Tuning{SpareFrames: 1}})
	f := frame(ourMAC, peerMAC, 0x88b5, 100)
	for range 100 {
		s.wire.send(t, f)
	}
	if n := s.nic.Counters().Drops.OutOfBuffer; n != 36 {
		t.Errorf("%d dropped, want 36", n)
	}
	if n := len(poll(d.Rx(0))); n != 64 {
		t.Errorf("%d received, want 64", n)
	}
	if st := d.Rx(0).Stats(); st.Stalls != 1 || st.Packets != 64 || st.Bytes != 6400 {
		t.Errorf("stats %+v", st)
	}
	s.wire.send(t, f)
	if n := len(poll(d.Rx(0))); n != 1 {
		t.Errorf("%d received after it, want 1", n)
	}
	var told uint64
	for end := time.Now().Add(10 * time.Second); told != 36 && time.Now().Before(end); {
		time.Sleep(time.Millisecond) // nothing tells that it may be asked for again
		told = d.Stats().OutOfBuffer
	}
	if told != 36 {
		t.Errorf("the device tells of %d dropped, want 36", told)
	}
}

// What the device counts is what the NIC counts.
func TestStatsAgree(t *testing.T) {
	s, d := usual(t, dv.Config{NIC: dv.NIC{RxQueues: 2, TxQueues: 2}})
	for i := range 50 {
		f := flows(i)["UDP over IPv4"]
		s.wire.send(t, packet(f.Src, f.Dst, 17, i))
		d.Tx(i % 2).Post(&dv.TxPacket{Bufs: [][]byte{frame(peerMAC, ourMAC, 0x88b5, 60+i)}})
		d.Tx(i % 2).Flush()
	}
	for i := range 2 {
		poll(d.Rx(i))
		d.Tx(i).Reclaim()
	}
	var sum struct{ rx, rxBytes, tx, txBytes, doorbells uint64 }
	for _, q := range d.Stats().Rx {
		sum.rx, sum.rxBytes = sum.rx+q.Packets, sum.rxBytes+q.Bytes
	}
	for _, q := range d.Stats().Tx {
		sum.tx, sum.txBytes, sum.doorbells = sum.tx+q.Packets,
			sum.txBytes+q.Bytes, sum.doorbells+q.Doorbells
	}
	c := s.nic.Counters()
	if slice := c.Slice; sum.rx != slice.RxPackets || sum.rxBytes != slice.RxBytes ||
		sum.tx != slice.TxPackets || sum.txBytes != slice.TxBytes || sum.doorbells != c.Doorbells {
		t.Errorf("device %+v, NIC %+v", sum, slice)
	}
	if !d.Stats().LinkUp {
		t.Error("link down")
	}
}

// Two NICs on one cable, both driven by us.
func TestPingPong(t *testing.T) {
	a, b := wire.Pair()
	var devices []*dv.Device
	for i, w := range []wire.Wire{a, b} {
		nic, err := simnic.New(simnic.Config{Name: fmt.Sprintf("mlx5_sim%d", i),
			Seed: uint64(i + 1)})
		if err != nil {
			t.Fatal(err)
		}
		defer nic.Close()
		if err := nic.ConnectWire(w); err != nil {
			t.Fatal(err)
		}
		d, err := dv.Open(t.Context(), dv.Config{NIC: dv.NIC{
			Model: dv.Model{
				Kernel: kernel.Opener(nic),
				Facts:  dv.PortFacts{Name: nic.Config().Name, MAC: nic.MAC()},
			},
		}})
		if err != nil {
			t.Fatal(err)
		}
		defer d.Close()
		devices = append(devices, d)
	}
	for i := range 1000 {
		from, to := devices[i%2], devices[1-i%2]
		f := frame(to.MAC(), from.MAC(), 0x88b5, 60+i)
		if err := from.Tx(0).Post(&dv.TxPacket{Bufs: [][]byte{f}}); err != nil {
			t.Fatal(err)
		}
		from.Tx(0).Flush()
		from.Tx(0).Reclaim()
		if got := poll(to.Rx(0)); len(got) != 1 || !bytes.Equal(got[0].Data, f) {
			t.Fatalf("round %d: %d frames", i, len(got))
		}
	}
}
