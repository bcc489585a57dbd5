package filter

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/rdma-netstack/rdma-netstack/clock"
	"github.com/rdma-netstack/rdma-netstack/cmd/rdma-netstack/lab"
	"github.com/rdma-netstack/rdma-netstack/tests/lib/need"
)

// kernelFilter represents a namespace that takes what comes by a TUN for its own, whatever the
// address, and in which nft has a list.
type kernelFilter struct {
	t   *testing.T
	ns  *lab.Net
	tun *os.File
}

// watches holds chains around the list's own: which packets come to it, and which it lets through,
// told by their identification, or their length of IPv6. What the kernel answers comes by lo.
const watches = `
	table inet watch {
		set all4 { typeof ip id; size 65535; flags dynamic; }
		set all6 { typeof ip6 length; size 65535; flags dynamic; }
		set passed4 { typeof ip id; size 65535; flags dynamic; }
		set passed6 { typeof ip6 length; size 65535; flags dynamic; }
		chain before {
			type filter hook input priority -100; policy accept;
			iifname "tun0" add @all4 { ip id }
			iifname "tun0" add @all6 { ip6 length }
		}
		chain after {
			type filter hook input priority 100; policy accept;
			iifname "tun0" add @passed4 { ip id }
			iifname "tun0" add @passed6 { ip6 length }
		}
	}
`

func newKernelFilter(t *testing.T) *kernelFilter {
	t.Helper()
	need.NetNS(t)
	need.TUN(t)
	need.Tool(t, "nft")
	ns, err := lab.New("nft")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ns.Close() })
	k := &kernelFilter{t: t, ns: ns}
	if err := ns.Do(func() (err error) {
		k.tun, err = openTUN("tun0")
		return err
	}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { k.tun.Close() })
	k.run("", "sh", "-ec", `ip link set lo up; ip link set tun0 up
		ip route add local 10.0.0.0/8 dev lo; ip -6 route add local 2001:db8::/32 dev lo
		for i in all default tun0; do
			echo 0 >/proc/sys/net/ipv4/conf/$i/rp_filter
			echo 1 >/proc/sys/net/ipv4/conf/$i/accept_local
		done`)
	return k
}

// openTUN makes a TUN without headers of its own.
func openTUN(name string) (*os.File, error) {
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	ifr, err := unix.NewIfreq(name)
	if err != nil {
		return nil, err
	}
	ifr.SetUint16(unix.IFF_TUN | unix.IFF_NO_PI)
	return os.NewFile(uintptr(fd), name), unix.IoctlIfreq(fd, unix.TUNSETIFF, ifr)
}

// run runs a program in the namespace and returns its output.
func (k *kernelFilter) run(stdin string, args ...string) []byte {
	k.t.Helper()
	cmd := exec.Command(args[0], args[1:]...)
	var out, errs strings.Builder
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(stdin), &out, &errs
	err := k.ns.Start(cmd)
	if err == nil {
		err = cmd.Wait()
	}
	if err != nil {
		k.t.Fatalf("%s: %v, %s\n%s", args, err, errs.String(), stdin)
	}
	return []byte(out.String())
}

// load makes nft load a list, in the place of the one before.
func (k *kernelFilter) load(text string) {
	k.t.Helper()
	k.run("flush ruleset\n"+watches+text, "nft", "-f", "-")
}

// seen returns the packets in a set of watches.
func (k *kernelFilter) seen(name string) map[int]bool {
	k.t.Helper()
	var answer struct {
		NFTables []struct {
			Set struct{ Elem []int }
		}
	}
	text := k.run("", "nft", "-j", "list", "set", "inet", "watch", name)
	if err := json.Unmarshal(text, &answer); err != nil {
		k.t.Fatalf("%v in %s", err, text)
	}
	all := map[int]bool{}
	for _, o := range answer.NFTables {
		for _, n := range o.Set.Elem {
			all[n] = true
		}
	}
	return all
}

// base6 is the length of the first IPv6 packet behind its header.
const base6 = 64

// judge sends packets, which it numbers, and returns which of them pass.
func (k *kernelFilter) judge(packets [][]byte) map[int]bool {
	k.t.Helper()
	for i, ip := range packets {
		if ip[0]>>4 == 4 {
			binary.BigEndian.PutUint16(ip[4:], uint16(i))
			sealIPv4(ip)
		} else {
			ip = append(ip, make([]byte, ipv6Len+base6+i-len(ip))...)
			binary.BigEndian.PutUint16(ip[4:], uint16(base6+i))
		}
		if _, err := k.tun.Write(ip); err != nil {
			k.t.Fatal(err)
		}
	}
	for len(k.seen("all4"))+len(k.seen("all6")) < len(packets) {
		if k.t.Context().Err() != nil {
			k.t.Fatal("the kernel has not seen all packets")
		}
	}
	passed := k.seen("passed4")
	for n := range k.seen("passed6") {
		passed[n-base6] = true
	}
	return passed
}

// sealIPv4 writes the checksum of an IPv4 header.
func sealIPv4(ip []byte) {
	ip[10], ip[11] = 0, 0
	sum := uint32(0)
	for i := 0; i < ipv4Len; i += 2 {
		sum += uint32(binary.BigEndian.Uint16(ip[i:]))
	}
	sum = sum>>16 + sum&0xffff
	binary.BigEndian.PutUint16(ip[10:], ^uint16(sum+sum>>16))
}

// TestSameAsNftables makes nft load random lists and the kernel judge random packets: what it lets
// through is what the compiled list lets through. Left out are fragments of IPv4, which Linux puts
// together ahead of its input chain, and later ones of IPv6, of which it takes data for ports.
func TestSameAsNftables(t *testing.T) {
	lists, packets := 20, 500
	if os.Getenv("TEST_NFT_LISTS") != "" {
		fmt.Sscan(os.Getenv("TEST_NFT_LISTS"), &lists)
	}
	k := newKernelFilter(t)
	n := rand.Uint64()
	if s := os.Getenv("TEST_SEED"); s != "" {
		fmt.Sscan(s, &n)
	}
	t.Logf("TEST_SEED=%d", n)
	r := rand.New(rand.NewPCG(n, 6))
	dropped, fragments := 0, 0
	for range lists {
		text := randomList(r, 20)
		k.load(text)
		l, err := Parse(text)
		if err != nil {
			t.Fatalf("%v in\n%s", err, text)
		}
		f, err := New(l, clock.Clock{})
		if err != nil {
			t.Fatal(err)
		}
		var all [][]byte
		for len(all) < packets {
			ip := randomPacket(r)
			if p := (Packet{}); p.Read(ip) && !p.later && !(p.fragment && p.family == 4) {
				all = append(all, ip)
			}
		}
		passed := k.judge(all)
		for i, ip := range all {
			var p Packet
			p.Read(ip)
			drops := receive(f, ip) != ""
			if p.fragment {
				fragments++
			}
			if drops == passed[i] {
				_, rule := l.Judge(Input, &p)
				t.Fatalf("%+v: nftables lets it pass: %v, we drop it: %v, rule %d of\n%s", p,
					passed[i], drops, rule, text)
			}
			if drops {
				dropped++
			}
		}
	}
	if n := lists * packets; dropped < n/10 || dropped > n*9/10 || fragments == 0 {
		t.Errorf("of %d packets %d are dropped, %d are fragments", n, dropped, fragments)
	}
}

// TestLimitsAreNftables makes nft load limits by source and what denies behind them.
func TestLimitsAreNftables(t *testing.T) {
	k := newKernelFilter(t)
	k.load(limited)
	k.load(strings.ReplaceAll(limited, "update @flood6", "meter each size 1000"))
}
