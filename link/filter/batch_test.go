package filter

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/rdma-netstack/rdma-netstack/clock/clocktest"
)

// richList adds to a random list rules about flags, source ports, wide ranges of ports, and limits.
func richList(r *rand.Rand) string {
	lines := strings.SplitAfter(randomList(r, 12), "\n")
	rules := []string{"tcp flags syn / syn,ack", "tcp dport 1-3 tcp flags ack / ack",
		"tcp flags fin,rst / fin,rst", "udp sport 3",
		"tcp sport 1-3 tcp dport { 2, 255-257, 60000 }",
		"tcp dport { 0-255, 512-65535 }", "tcp dport != 40000", "udp dport 256-40000",
		"meta l4proto { tcp, udp } th dport { 3, 255, 65535 }", "ip saddr 10.0.0.0/9",
		"ip6 saddr 2001:db8:1::/48 tcp dport 0-4", "limit rate 30/minute burst 3 packets",
		"tcp dport 2 limit rate over 20/minute burst 2 packets"}
	meters := []string{"meter a size 16384 { ip saddr limit rate 20/minute burst 2 packets }",
		"udp dport 0-4 meter b size 16384 { ip saddr and 255.0.0.0 limit rate over 5/second }"}
	chain := ""
	for i, line := range lines {
		if strings.HasPrefix(line, "chain") {
			chain = line
		}
		here := rules
		if strings.HasPrefix(chain, "chain input") {
			here = append(here[:len(here):len(here)], meters...)
		}
		inside := chain != "" && !strings.HasPrefix(line, "chain") && line != "}\n"
		for inside && r.IntN(3) == 0 {
			lines[i] += "\t" + here[r.IntN(len(here))] + " " + Verdict(r.IntN(2)).String() + "\n"
		}
		if line == "}\n" {
			chain = ""
		}
	}
	return strings.Join(lines, "")
}

// richPacket makes a packet that rules of richList may be about, some with options and some cut.
func richPacket(r *rand.Rand) []byte {
	ip := randomPacket(r)
	at := ipv4Len
	if ip[0]>>4 == 6 {
		at = ipv6Len
	}
	usual := func(proto uint8) bool { return usualKind(proto).isOf(proto) }
	if at == ipv4Len && usual(ip[9]) || at == ipv6Len && usual(ip[6]) {
		ports := []uint16{0, 1, 2, 3, 4, 22, 67, 68, 255, 256, 257, 546, 547, 40000, 60000, 65535}
		binary.BigEndian.PutUint16(ip[at:], ports[r.IntN(len(ports))])
		binary.BigEndian.PutUint16(ip[at+2:], ports[r.IntN(len(ports))])
		ip[at+13] = []uint8{flagSYN, flagACK, flagSYN | flagACK, flagFIN | flagACK, flagRST,
			uint8(r.IntN(256))}[r.IntN(6)]
	}
	if at == ipv4Len && r.IntN(8) == 0 {
		ip[0]++
		ip = append(append(append([]byte(nil), ip[:at]...), 1, 1, 1, 1), ip[at:]...)
	}
	if r.IntN(8) == 0 {
		ip = ip[:r.IntN(len(ip)+1)]
	}
	return ip
}

// answerTo turns a packet of TCP or UDP round.
func answerTo(ip []byte, flags uint8) []byte {
	a := append([]byte(nil), ip...)
	at, width, first := ipv4Len, 4, 12
	if ip[0]>>4 == 6 {
		at, width, first = ipv6Len, 16, 8
	}
	copy(a[first:], ip[first+width:first+2*width])
	copy(a[first+width:], ip[first:first+width])
	copy(a[at:], ip[at+2:at+4])
	copy(a[at+2:], ip[at:at+2])
	a[at+13] = flags
	return a
}

// twin holds two filters that are told the same. One judges the short way, the other rule by rule.
type twin struct {
	now         time.Time
	short, long *Filter
	a, b        Batch
}

func newTwin(l *List) (*twin, error) {
	w := &twin{now: time.Date(2026, 11, 29, 0, 0, 0, 0, time.UTC)}
	c := clocktest.Showing(func() time.Time { return w.now })
	var err error
	if w.short, err = New(l, c); err == nil {
		w.long, err = New(l, c)
	}
	return w, err
}

// each calls do with both.
func (w *twin) each(do func(f *Filter)) { do(w.short); do(w.long) }

// receive returns what both say of a batch of packets.
func (w *twin) receive(packets ...[]byte) (short, long []string) {
	a, b := w.a.Begin(w.short), w.b.Begin(w.long)
	for _, ip := range packets {
		if a && len(ip) > 0 {
			short = append(short, w.a.Receive(ip))
		}
		if b && len(ip) > 0 {
			long = append(long, w.b.receiveAny(ip))
		}
	}
	if a {
		w.a.End()
	}
	if b {
		w.b.End()
	}
	return short, long
}

// compare says in what their counts differ.
func (w *twin) compare() string {
	a, _ := json.Marshal(w.short.Status())
	b, _ := json.Marshal(w.long.Status())
	if string(a) == string(b) {
		return ""
	}
	return fmt.Sprintf("%s\n%s", a, b)
}

// TestShortWay: what is decided by two looks is what the rules say one by one, with limits,
// prefixes ahead of the list, and answers to what was sent; and so are all counts.
func TestShortWay(t *testing.T) {
	const lists, batches, packets = 150, 20, 16
	r := rand.New(rand.NewPCG(36, 7))
	var dropped, answers, decided int
	for range lists {
		text := richList(r)
		l, err := Parse(text)
		if err != nil {
			t.Fatalf("%v in\n%s", err, text)
		}
		w, err := newTwin(l)
		if err != nil {
			t.Fatal(err)
		}
		var sent [][]byte
		for range batches {
			if r.IntN(3) == 0 {
				p := netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(r.IntN(3)), byte(r.IntN(3)),
					byte(r.IntN(4))}), 8+r.IntN(25))
				if r.IntN(2) == 0 {
					a := netip.MustParseAddr(fmt.Sprintf("2001:db8:%d::%d:%d", r.IntN(3), r.IntN(2),
						r.IntN(4)))
					p = netip.PrefixFrom(a, 32+r.IntN(97))
				}
				deny := r.IntN(2) == 0
				w.each(func(f *Filter) {
					var err error
					if deny {
						err = f.Deny(p, 0)
					} else {
						err = f.Allow(p, 0)
					}
					if err != nil {
						t.Fatal(err)
					}
				})
			}
			var all [][]byte
			for range packets {
				ip := richPacket(r)
				var p Packet
				if p.Read(ip) && p.ports && !p.fragment && p.payload+usualLen <= len(ip) &&
					ip[0] != 0x46 {
					w.each(func(f *Filter) { f.Send(ip) })
					sent = append(sent, ip)
				}
				all = append(all, richPacket(r))
				if len(sent) > 0 && r.IntN(2) == 0 {
					of := sent[max(0, len(sent)-1-r.IntN(8))]
					all = append(all, answerTo(of, []uint8{flagACK, flagSYN | flagACK, flagRST,
						flagFIN | flagACK}[r.IntN(4)]))
				}
			}
			short, long := w.receive(all...)
			for i := range short {
				if short[i] != long[i] {
					t.Fatalf("%x: %q, rule by rule %q, of\n%s", all[i], short[i], long[i], text)
				}
				decided++
				var p Packet
				v := Accept
				if p.Read(all[i]) {
					v, _ = l.Judge(Input, &p)
				}
				if short[i] != "" {
					dropped++
				} else if v == Drop {
					answers++
				}
			}
			w.now = w.now.Add(time.Duration(r.IntN(40)) * time.Second / 4)
		}
		if differ := w.compare(); differ != "" {
			t.Fatalf("the counts are\n%s, of\n%s", differ, text)
		}
	}
	if dropped < decided/10 || dropped > decided*9/10 || answers < decided/50 {
		t.Errorf("of %d packets %d are dropped, %d pass though the list drops them", decided,
			dropped, answers)
	}
}

// TestManyRules: rules whose numbers, classes, ports and combinations are more than tables hold are
// decided as all others.
func TestManyRules(t *testing.T) {
	var b strings.Builder
	b.WriteString("chain input { policy drop;\n")
	for i := range 17_000 {
		fmt.Fprintf(&b, "ip saddr 10.%d.%d.0/24 tcp dport %d %s\n", i>>8, i&255, i%7,
			Verdict(i%2))
	}
	b.WriteString("tcp dport 6 tcp flags syn / syn,ack accept\ntcp dport 7 accept\n}")
	l, err := Parse(b.String())
	if err != nil {
		t.Fatal(err)
	}
	w, err := newTwin(l)
	if err != nil {
		t.Fatal(err)
	}
	r := rand.New(rand.NewPCG(36, 8))
	var all [][]byte
	for range 500 {
		src := fmt.Sprintf("10.%d.%d.1", 62*r.IntN(2)+r.IntN(4), r.IntN(256))
		if r.IntN(3) == 0 {
			src = "198.51.100.1"
		}
		all = append(all, packet(src, "192.0.2.10", protoTCP,
			[]uint8{flagSYN, flagACK}[r.IntN(2)], 4000, uint16(r.IntN(8))))
	}
	short, long := w.receive(all...)
	passed := 0
	for i, ip := range all {
		var p Packet
		p.Read(ip)
		if v, _ := l.Judge(Input, &p); short[i] != long[i] || (short[i] == "") != (v == Accept) {
			t.Fatalf("%+v: %q, rule by rule %q, want %s", p, short[i], long[i], v)
		}
		if short[i] == "" {
			passed++
		}
	}
	if differ := w.compare(); differ != "" || passed < 20 || passed > 480 {
		t.Errorf("%d of 500 pass; the counts are\n%s", passed, differ)
	}
}

// TestCounts: each packet counts once, for the first rules and for those behind them, whatever the
// batches, be they so long that not all of their packets are counted at the end.
func TestCounts(t *testing.T) {
	text := "chain input { policy drop;\n"
	for i := range 2 * firstHits {
		text += fmt.Sprintf("tcp dport %d accept\n", i)
	}
	f := newFilter(t, text+"}")
	var b Batch
	for batch := range 3 {
		b.Begin(f)
		for port := range 2*firstHits + 5 {
			for range 4 << ((batch + port) % 2) {
				b.Receive(packet("198.51.100.1", "192.0.2.10", protoTCP, flagSYN, 4000,
					uint16(port)))
			}
		}
		b.End()
	}
	c := f.Status().Chains[0]
	for i, r := range c.Rules {
		if want := uint64(16 + 4*(i%2)); r.Packets != want {
			t.Errorf("rule %d has counted %d packets, want %d", i+1, r.Packets, want)
		}
	}
	if c.Packets != 88 {
		t.Errorf("the policy has counted %d packets, want 88", c.Packets)
	}
}

// FuzzShortWay: no packet is decided otherwise the short way, whatever the list.
func FuzzShortWay(f *testing.F) {
	r := rand.New(rand.NewPCG(36, 9))
	for range 20 {
		f.Add(richList(r), richPacket(r), richPacket(r), richPacket(r))
	}
	dial := packet("192.0.2.10", "198.51.100.8", protoTCP, flagSYN, 40000, 80)
	f.Add("chain input { policy drop; }", dial, answerTo(dial, flagACK), syn("198.51.100.1"))
	f.Add(limited, syn("198.51.100.1"), syn("198.51.100.1"), syn("198.51.100.2"))
	f.Fuzz(func(t *testing.T, text string, sent, one, other []byte) {
		l, err := Parse(text)
		if err != nil {
			return
		}
		w, err := newTwin(l)
		if err != nil {
			return
		}
		w.each(func(f *Filter) { f.Send(sent) })
		check := func() {
			short, long := w.receive(one, other, one)
			for i := range short {
				if short[i] != long[i] {
					t.Fatalf("%q, rule by rule %q", short[i], long[i])
				}
			}
		}
		check()
		var p Packet
		if p.Read(other) {
			from := p.src.prefixFrom(p.family, 8)
			w.each(func(f *Filter) { f.Deny(from.Masked(), 0) }) // not ::ffff:0:0/96
			check()
		}
		if differ := w.compare(); differ != "" {
			t.Fatal(differ)
		}
	})
}

// TestFirstLook: a list's prefixes are decided about by the first look, at both sides of each edge,
// beside rules about few sources and prefixes ahead of the list; outside of all prefixes as well.
func TestFirstLook(t *testing.T) {
	r := rand.New(rand.NewPCG(36, 10))
	few := "ip saddr 0.0.0.0/16 accept; ip saddr 0.1.0.0/16 tcp dport 1-9 drop; " +
		"ip saddr { 0.2.0.0/16, 0.4.0.0/16 } udp dport 1-9 accept; "
	few = few + strings.NewReplacer("ip ", "ip6 ", "0.0.0.0/16", "2a00::/48", "0.1.0.0/16",
		"2a00:0:1::/48", "0.2.0.0/16", "2a00:0:2::/48", "0.4.0.0/16", "2a00:0:4::/48").Replace(few)
	for _, list := range []string{"networks", "mixed", "hosts", "networks6"} {
		for _, n := range []int{1, 10, 300, 10_000} {
			for _, before := range []string{"", few}[:min(n, 2)] {
				prefixes := randomPrefixes(list, n)
				l, err := Parse(strings.Replace(denying(prefixes), "ip", before+"ip", 1))
				if err != nil {
					t.Fatal(err)
				}
				w, err := newTwin(l)
				if err != nil {
					t.Fatal(err)
				}
				testFirstLook(t, r, w, fmt.Sprintf("%d %s behind %q", n, list, before), prefixes)
			}
		}
	}
}

func testFirstLook(t *testing.T, r *rand.Rand, w *twin, list string, prefixes []netip.Prefix) {
	var looked, searched int
	for turn := range 40 {
		var all [][]byte
		for range 50 {
			ip := packetNear(r, prefixes)
			if turn >= 20 && r.IntN(8) == 0 {
				w.each(func(f *Filter) { f.Send(answerTo(ip, flagSYN)) })
			}
			all = append(all, ip)
		}
		if turn >= 30 && r.IntN(2) == 0 {
			p := prefixes[r.IntN(len(prefixes))]
			w.each(func(f *Filter) {
				if err := f.Allow(p, 0); err != nil {
					t.Fatal(err)
				}
			})
		}
		w.a.Begin(w.short)
		for _, ip := range all {
			if turn >= 20 { // more than the list counts
				break
			}
			w.a.count, w.a.drops, w.a.sampleAt = 0, 0, maxSampled
			var p Packet
			p.Read(ip)
			v, number := w.short.current.Load().list.Judge(Input, &p)
			proto, h := usualTransport(ip)
			atOnce := number > 0 && (proto == protoTCP && isFirstSYN(h[13]) ||
				proto == protoUDP && p.dport < firstDialPort)
			l := w.a.Look(ip)
			turned := l >= turnedAway && l < turnedAway+firstHits
			switch {
			case l == further, l == ofClass+rest:
				searched++
			case turned && (v == Accept || int(l-turnedAway) != number), l.Passes() && v == Drop,
				v == Drop && atOnce && !turned:
				t.Fatalf("%s: %x: %d at once, by the list rule %d: %s", list, ip, l, number, v)
			}
			looked++
		}
		w.a.count, w.a.drops = 0, 0
		short, long := w.receive(all...)
		for i := range short {
			if short[i] != long[i] {
				t.Fatalf("%s: %x: %q, rule by rule %q", list, all[i], short[i], long[i])
			}
		}
	}
	if differ := w.compare(); differ != "" {
		t.Fatalf("%s: the counts are\n%s", list, differ)
	}
	if searched > looked/20 {
		t.Errorf("%s: for %d of %d packets the first look is not enough", list, searched, looked)
	}
}

// packetNear makes a packet from an edge of one of the prefixes, from outside of it, or elsewhere.
func packetNear(r *rand.Rand, prefixes []netip.Prefix) []byte {
	p := prefixes[r.IntN(len(prefixes))]
	first, family := addressOf(p.Addr())
	last := first.lastOf(family, p.Bits())
	src := []address{first, last, first.previous(family), last.next(family)}[r.IntN(4)]
	if r.IntN(4) == 0 {
		src.hi = r.Uint64() & highest(family).hi
	}
	from, to := src.prefixFrom(family, p.Addr().BitLen()).Addr().String(), "192.0.2.10"
	if family == 6 {
		to = "2001:db8::10"
	}
	return packet(from, to, []uint8{protoTCP, protoUDP}[r.IntN(2)],
		[]uint8{flagSYN, flagACK}[r.IntN(2)], uint16(r.IntN(1<<16)),
		[]uint16{443, 53, 22, 67, firstDialPort - 1, firstDialPort}[r.IntN(6)])
}

// TestDeniedInPart: prefixes that several rules drop from, or that one does not drop all from, or a
// rule behind the first ones, are not taken for those that one rule denies.
func TestDeniedInPart(t *testing.T) {
	r := rand.New(rand.NewPCG(36, 11))
	others := strings.Repeat("meta l4proto 99 drop; ", firstHits+5)
	for _, rules := range []string{"FROM meta l4proto tcp drop; FROM drop",
		"FROM tcp dport 22 drop", "FROM udp dport 67 accept; FROM drop",
		"FROM meta l4proto udp drop",
		"FROM meta l4proto { tcp, udp } drop",
		"FROM tcp flags syn / syn drop; FROM drop", "FROM limit rate 20/minute drop",
		others + "FROM drop", "FROM accept"} {
		for _, list := range []string{"hosts", "networks6"} {
			prefixes := randomPrefixes(list, 300)
			from, _, _ := strings.Cut(strings.TrimPrefix(denying(prefixes),
				"chain input { policy drop; "), " drop;")
			text := "chain input { " + strings.ReplaceAll(rules, "FROM", from) + "; }"
			l, err := Parse(text)
			if err != nil {
				t.Fatal(err, rules)
			}
			w, err := newTwin(l)
			if err != nil {
				t.Fatal(err)
			}
			for range 20 {
				var all [][]byte
				for range 50 {
					all = append(all, packetNear(r, prefixes))
				}
				short, long := w.receive(all...)
				for i := range short {
					if short[i] != long[i] {
						t.Fatalf("%s: %x: %q, rule by rule %q", rules, all[i], short[i], long[i])
					}
				}
			}
			if differ := w.compare(); differ != "" {
				t.Fatalf("%s: the counts are\n%s", rules, differ)
			}
		}
	}
}
