package rdma

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// letterbox is a mailbox that remembers what it was told.
type letterbox struct {
	refuse bool
	heard  []string // copies: what is put is borrowed
}

func (b *letterbox) Put(ip, udp []byte) bool {
	b.heard = append(b.heard, fmt.Sprintf("%x %x", ip, udp))
	return !b.refuse
}

func (b *letterbox) Knock() { b.heard = append(b.heard, "knock") }

// boxes gives IPv4 port 53 and IPv6 port 54 to mailboxes, unless they are nil.
func (j *judge) boxes(v4, v6 *letterbox) {
	j.worker.e.SetMailboxes(func(six bool, port uint16) Mailbox {
		switch {
		case port == 53 && !six && v4 != nil:
			return v4
		case port == 54 && six && v6 != nil:
			return v6
		}
		return nil
	})
}

// query is a datagram to port 53 of the judge.
func query(change func(*tcpFrame)) []byte {
	f := segment(0)
	f.ports = [2]uint16{4000, 53}
	change(&f)
	return udpFrame(f)
}

// TestMailbox: what is put, in which order, and that a batch ends with one knock.
func TestMailbox(t *testing.T) {
	j := newJudge(t, true)
	var v4, v6 letterbox
	j.boxes(&v4, &v6)
	one := query(func(f *tcpFrame) { f.payload = []byte("one") })
	padded := query(func(f *tcpFrame) { f.payload, f.pad = []byte("2"), 17 })
	six := query(func(f *tcpFrame) { f.v6, f.ports[1] = true, 54 })
	j.hear(one, padded, six, one)
	put := func(frame []byte, ip, end int) string {
		return fmt.Sprintf("%x %x", frame[ethLen:ethLen+ip], frame[ethLen+ip:end])
	}
	want := []string{put(one, ipv4Len, len(one)), put(padded, ipv4Len, ethLen+ipv4Len+udpLen+1), put(one, ipv4Len, len(one)), "knock"}
	if got := slices.Compact(v4.heard); !slices.Equal(got, want) {
		t.Errorf("heard %q\nwant %q", got, want)
	}
	if want := []string{put(six, ipv6Len, len(six)), "knock"}; !slices.Equal(v6.heard, want) {
		t.Errorf("heard %q\nwant %q", v6.heard, want)
	}
	if got := j.read(t); len(got) != 0 {
		t.Errorf("the socket has %q", got)
	}
	v4.heard = nil
	j.hear(udpFrame(segment(0)))
	if len(v4.heard) != 0 {
		t.Errorf("a batch without anything for the box: %q", v4.heard)
	}
}

// TestMailboxCounts compares the counters with those of the ordinary way. A datagram put counts there as received by UDP, too, which
// is the mailbox's to count here.
func TestMailboxCounts(t *testing.T) {
	for _, v6 := range []bool{false, true} {
		boxed, ordinary := newJudge(t, true), newJudge(t, false)
		var box letterbox
		boxed.boxes(&box, &box)
		for _, j := range []*judge{boxed, ordinary} {
			j.hear(query(func(f *tcpFrame) {
				if f.v6 = v6; v6 {
					f.ports[1] = 54
				}
			}))
		}
		got, want := boxed.counts(t), ordinary.counts(t)
		for name, n := range got {
			of := func(part string) bool { return strings.Contains(name, part) }
			if n != want[name] && (of("Rx") || of("Received") || of("Delivered")) && !of("UDP") {
				t.Errorf("IPv6 %v: %s is %d, want %d", v6, name, n, want[name])
			}
		}
		w := boxed.worker
		if w.count.packets.Load() != 1 || w.count.fastPath.Load() != 1 {
			t.Errorf("IPv6 %v: %d packets, %d on the lane", v6, w.count.packets.Load(), w.count.fastPath.Load())
		}
	}
}

// TestMailboxIsNotOffered has the stack get what is not for the lane, not for a port with a box, or refused.
func TestMailboxIsNotOffered(t *testing.T) {
	plain := func(*tcpFrame) {}
	for _, tt := range []struct {
		name    string
		frame   []byte
		refuse  bool
		offered bool
		read    int // by the stack's socket
		change  func(*judge)
	}{
		{name: "refused", frame: query(plain), refuse: true, offered: true, read: 1},
		{name: "options", frame: query(func(f *tcpFrame) { f.ipOpts = []byte{1, 1, 1, 0} }), read: 1},
		{name: "fragment", frame: query(func(f *tcpFrame) { f.fragment = 8 })},
		{name: "to the subnet", frame: query(func(f *tcpFrame) { f.to = 255 }), read: 1},
		{name: "from ourselves", frame: query(func(f *tcpFrame) { f.from = 1 })},
		{name: "longer than its packet", frame: changed(query(plain), 24, 1, 0)},
		{name: "TCP", frame: func() []byte { f := segment(0); f.ports[1] = 53; return f.bytes() }()},
		{name: "another port", frame: query(func(f *tcpFrame) { f.ports[1] = 54 })},
		{name: "no lane", frame: query(plain), read: 1, change: func(j *judge) { j.worker.e.SetHosts(nil) }},
		{name: "no mailboxes", frame: query(plain), read: 1, change: func(j *judge) { j.worker.e.SetMailboxes(nil) }},
		{name: "no stack", frame: query(plain), read: 1, change: func(j *judge) { j.worker.attachment.networks.Store(nil) }},
		{name: "ended", frame: query(plain), change: func(j *judge) { j.worker.attachment.stopping.Store(true) }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			j, box := newJudge(t, true), &letterbox{refuse: tt.refuse}
			j.boxes(box, nil)
			if tt.change != nil {
				tt.change(j)
			}
			j.hear(tt.frame)
			if got := len(box.heard) > 0; got != tt.offered {
				t.Errorf("offered: %v", box.heard)
			}
			if slices.Contains(box.heard, "knock") {
				t.Error("knocked for nothing")
			}
			if got := j.read(t); len(got) != tt.read {
				t.Errorf("the socket has %q", got)
			}
		})
	}
}

// blackHole takes everything.
type blackHole struct{ bytes int }

func (h *blackHole) Put(ip, udp []byte) bool { h.bytes += len(udp); return true }
func (h *blackHole) Knock()                  {}

func TestMailboxDoesNotAllocate(t *testing.T) {
	j, hole := newJudge(t, true), new(blackHole)
	j.worker.e.SetMailboxes(func(bool, uint16) Mailbox { return hole })
	frame := query(func(*tcpFrame) {})
	batch := [][]byte{frame, frame, frame}
	j.hear(batch...)
	if n := testing.AllocsPerRun(100, func() { j.hear(batch...) }); n != 0 {
		t.Errorf("%v allocations for three datagrams", n)
	}
	if hole.bytes == 0 {
		t.Error("nothing was put")
	}
}

// TestMailboxKeepsOrder: in a batch nothing is put after what goes to the stack's queue of the same socket.
func TestMailboxKeepsOrder(t *testing.T) {
	plain, fragment := query(func(*tcpFrame) {}), query(func(f *tcpFrame) { f.fragment = 8 })
	for _, tt := range []struct {
		name   string
		batch  [][]byte
		refuse bool
		want   int // offers and knocks
	}{
		{"before a fragment", [][]byte{plain, plain, fragment}, false, 3},
		{"behind a fragment", [][]byte{plain, fragment, plain}, false, 2},
		{"behind one that was refused", [][]byte{plain, plain}, true, 1},
	} {
		j, box := newJudge(t, true), &letterbox{refuse: tt.refuse}
		j.boxes(box, nil)
		if j.hear(tt.batch...); len(box.heard) != tt.want {
			t.Errorf("%s: %q", tt.name, box.heard)
		}
	}
}

// TestMailboxOvertakesNothing: behind a datagram to its port that the stack has to look at, the mailbox is offered none of the batch.
func TestMailboxOvertakesNothing(t *testing.T) {
	for _, tt := range []struct {
		name    string
		before  func(*tcpFrame)
		offered int
	}{
		{"options", func(f *tcpFrame) { f.ipOpts = []byte{1, 1, 1, 0} }, 0},
		{"to the subnet", func(f *tcpFrame) { f.to = 255 }, 0},
		{"options, to another port", func(f *tcpFrame) { f.ipOpts, f.ports[1] = []byte{1, 1, 1, 0}, 55 }, 1},
	} {
		j, box := newJudge(t, true), &letterbox{}
		j.boxes(box, nil)
		j.hear(query(tt.before), query(func(*tcpFrame) {}))
		offered := len(slices.DeleteFunc(slices.Clone(box.heard), func(s string) bool { return s == "knock" }))
		if read := len(j.read(t)); offered != tt.offered || tt.offered == 0 && read != 2 {
			t.Errorf("%s: %d offered, want %d; the socket has %d", tt.name, offered, tt.offered, read)
		}
	}
}
