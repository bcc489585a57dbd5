package capture_test

import (
	"bytes"
	"encoding/binary"
	"net"
	"os/exec"
	"strings"
	"testing"

	"github.com/rdma-netstack/rdma-netstack/link/capture"
	"github.com/rdma-netstack/rdma-netstack/tests/lib/need"
)

// ether is an Ethernet frame to and from two stations.
func ether(etherType uint16, payload ...byte) []byte {
	f := []byte{2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2}
	return append(binary.BigEndian.AppendUint16(f, etherType), payload...)
}

// ip4 is an IPv4 packet of 192.0.2.1 to 192.0.2.2; fragment is its flags and offset.
func ip4(proto byte, fragment uint16, payload ...byte) []byte {
	h := []byte{0x45, 0, 0, byte(20 + len(payload)), 0, 1, byte(fragment >> 8), byte(fragment), 64,
		proto, 0, 0, 192, 0, 2, 1, 192, 0, 2, 2}
	return ether(0x0800, append(h, payload...)...)
}

// ip6 is an IPv6 packet of 2001:db8::1 to 2001:db8::2.
func ip6(proto byte, payload ...byte) []byte {
	h := []byte{0x60, 0, 0, 0, 0, byte(len(payload)), proto, 64}
	h = append(append(h, net.ParseIP("2001:db8::1")...), net.ParseIP("2001:db8::2")...)
	return ether(0x86dd, append(h, payload...)...)
}

// l4 begins with these ports, and is as long as a TCP header.
func l4(from, to uint16) []byte {
	b := binary.BigEndian.AppendUint16(nil, from)
	return append(binary.BigEndian.AppendUint16(b, to), make([]byte, 16)...)
}

// samples are frames of every kind that filters tell apart.
func samples() (frames [][]byte) {
	arp := append([]byte{0, 1, 8, 0, 6, 4, 0, 1, 2, 0, 0, 0, 0, 2, 192, 0, 2, 1, 0, 0, 0, 0, 0, 0},
		192, 0, 2, 2)
	all := ether(0x0806, arp...)
	copy(all, []byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff})
	group := ip6(58, 135, 0, 0, 0)
	copy(group, []byte{0x33, 0x33, 0, 0, 0, 1})
	return [][]byte{
		all, group, ip4(6, 0, l4(1000, 80)...), ip4(6, 0, l4(443, 2000)...),
		ip4(17, 0, l4(53, 3000)...), ip4(17, 0x2000, l4(3000, 53)...),
		ip4(17, 0x0010, l4(80, 80)...), ip4(1, 0, 8, 0, 0, 0), ip4(132, 0, l4(80, 9)...),
		ip6(6, l4(80, 1000)...), ip6(17, l4(1, 53)...), ip6(58, 128, 0, 0, 0),
		ether(0x88cc, 1, 2, 3), append(ip4(6, 0, l4(5, 80)...), make([]byte, 500)...),
		ip4(6, 0, l4(8080, 8081)...),
	}
}

// TestFilter compares with tcpdump, frame by frame.
func TestFilter(t *testing.T) {
	tcpdump := need.Tool(t, "tcpdump")
	for _, expression := range []string{
		"ip", "ip6", "arp", "tcp", "udp", "icmp", "icmp6", "sctp", "broadcast", "multicast",
		"host 192.0.2.1", "src host 192.0.2.1", "dst 192.0.2.1", "src or dst 192.0.2.2",
		"src and dst 192.0.2.1", "host 2001:db8::2", "net 192.0.2.0/24", "dst net 2001:db8::/32",
		"ip net 192.0.2.2/31", "port 80", "tcp port 80", "udp src port 53", "tcp dst port 80",
		"portrange 8080-9000", "src portrange 1-100", "ip proto 17", "ip6 proto 6",
		"ether host 02:00:00:00:00:01", "ether src 02:00:00:00:00:01", "less 60", "greater 200",
		"not tcp", "! port 80", "tcp and port 80", "udp or icmp", "tcp or udp and port 53",
		"not (tcp or udp)", "port 80 or 443", "tcp port 80 or 443 and ip6",
		"ip and not (host 192.0.2.2 and (port 443 || tcp port 80)) && greater 20",
		"arp host 192.0.2.2", "tcp src port 80 or dst port 53",
	} {
		t.Run(expression, func(t *testing.T) {
			f, err := capture.ParseFilter(expression)
			if err != nil {
				t.Fatal(err)
			}
			program, err := exec.Command(tcpdump, "-ddd", "-y", "EN10MB", expression).Output()
			if err != nil {
				t.Fatalf("tcpdump -ddd: %v", err)
			}
			compiled, err := capture.ParseFilter(string(program))
			if err != nil {
				t.Fatal(err)
			}
			matches := tcpdumpMatches(t, tcpdump, expression)
			for i, frame := range samples() {
				want := matches[i]
				if got := f.Match(frame, len(frame)); got != want {
					t.Errorf("frame %d, % x: %v, tcpdump %v", i, frame[:14], got, want)
				}
				if got := compiled.Match(frame, len(frame)); got != want {
					t.Errorf("frame %d by the program: %v, tcpdump %v", i, got, want)
				}
			}
		})
	}
}

// tcpdumpMatches asks tcpdump itself. The time of each frame is its number.
func tcpdumpMatches(t *testing.T, tcpdump, expression string) map[int]bool {
	t.Helper()
	file := binary.LittleEndian.AppendUint32(nil, 0xa1b2c3d4)
	file = append(file, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 4, 0, 1, 0, 0, 0)
	for i, frame := range samples() {
		file = binary.LittleEndian.AppendUint32(file, uint32(i))
		file = append(file, 0, 0, 0, 0)
		file = binary.LittleEndian.AppendUint32(file, uint32(len(frame)))
		file = binary.LittleEndian.AppendUint32(file, uint32(len(frame)))
		file = append(file, frame...)
	}
	c := exec.Command(tcpdump, "-r", "-", "-w", "-", expression)
	c.Stdin = bytes.NewReader(file)
	out, err := c.Output()
	if err != nil || len(out) < 24 {
		t.Fatalf("tcpdump %s: %v", expression, err)
	}
	matches := map[int]bool{}
	for out = out[24:]; len(out) > 16; out = out[16+binary.LittleEndian.Uint32(out[8:]):] {
		matches[int(binary.LittleEndian.Uint32(out))] = true
	}
	return matches
}

// TestParseFilter: what is wrong is said.
func TestParseFilter(t *testing.T) {
	for text, want := range map[string]string{
		"port":                      "ends where a value is expected",
		"port http":                 `"http" is no port: want 0 to 65535`,
		"port 70000":                `"70000" is no port`,
		"tcp and":                   "ends where a value is expected",
		"(tcp":                      "lacks a closing parenthesis",
		"tcp)":                      `does not know what to do with ")"`,
		"tcp udp":                   `does not know what to do with "udp"`,
		"example.com":               `does not know "example.com": neither a word`,
		"net 10/8":                  `"10/8" is no network`,
		"portrange 9-8":             "is no range of ports",
		"vlan 5000":                 `"5000" is no number of 0 to 4095`,
		"ether host 1:2":            "is no Ethernet address",
		"tcp[13] == 2":              "tcpdump -ddd can compile",
		strings.Repeat("(", 200):    "more than 100 levels",
		strings.Repeat("not ", 200): "more than 100 levels",
		"3,6 0 0 1":                 `says that it has "3" instructions`,
		"1,6 0 0":                   "is no instruction",
		"1,7 0 0 0":                 "filter program: ",
	} {
		if _, err := capture.ParseFilter(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.40q: %v; want %q in it", text, err, want)
		}
	}
	if f, err := capture.ParseFilter(" "); f != nil || err != nil || !f.Match(nil, 0) {
		t.Errorf("no filter: %v, %v", f, err)
	}
}

// TestFilterTagged: what is behind a VLAN tag is found, which tcpdump wants to be told.
func TestFilterTagged(t *testing.T) {
	plain := ip4(6, 0, l4(1000, 80)...)
	frame := append(append(bytes.Clone(plain[:12]), 0x81, 0, 0x60, 100), plain[12:]...)
	for text, want := range map[string]bool{"vlan": true, "vlan 100": true, "vlan 101": false,
		"tcp port 80": true, "vlan 100 and host 192.0.2.1": true, "udp": false} {
		f, err := capture.ParseFilter(text)
		if err != nil || f.Match(frame, len(frame)) != want {
			t.Errorf("%s: %v, want %v", text, err, want)
		}
	}
}

// FuzzFilter: no text and no frame may make the filter fail.
func FuzzFilter(f *testing.F) {
	for _, frame := range samples() {
		f.Add("tcp port 80 or not (udp and src net 10.0.0.0/8)", frame)
	}
	f.Add("1,6 0 0 65535", []byte{1})
	f.Add("vlan and src or dst 2001:db8::1", []byte{2: 0, 12: 0x81, 13: 0})
	f.Fuzz(func(t *testing.T, text string, frame []byte) {
		if filter, err := capture.ParseFilter(text); err == nil {
			filter.Match(frame, len(frame))
		}
	})
}
