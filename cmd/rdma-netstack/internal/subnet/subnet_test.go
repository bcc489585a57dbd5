package subnet

import (
	"net/netip"
	"os"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

func usesOf(prefixes ...string) (uses []Use) {
	for _, p := range prefixes {
		uses = append(uses, Use{netip.MustParsePrefix(p), "the test has " + p})
	}
	return uses
}

func TestFree(t *testing.T) {
	docs := []string{"192.0.2.0/24", "198.51.100.0/24", "203.0.113.0/24"}
	for _, c := range []struct {
		name   string
		uses   []string
		v4, v6 string
	}{
		{"nothing is used", nil, "192.0.2.0/24", "2001:db8::/64"},
		{"an address with its length", []string{"192.0.2.7/24", "2001:db8::7/64"},
			"198.51.100.0/24", "2001:db8:100::/64"},
		{"one address", []string{"192.0.2.255/32"}, "198.51.100.0/24", "2001:db8::/64"},
		{"documentation", append([]string{"2001:db8::/32"}, docs...), "198.18.0.0/24", "3fff::/64"},
		{"half the benchmark prefix", append([]string{"198.18.0.0/16"}, docs...),
			"198.19.0.0/24", "2001:db8::/64"},
		{"benchmarks too", append([]string{"198.18.0.0/15", "2001:db8::/32", "3fff::/20"}, docs...),
			"172.16.0.0/24", "2001:2::/64"},
		{"most of the private ones", append([]string{"198.18.0.0/15", "172.16.0.0/12",
			"192.168.0.0/16", "10.0.0.0/9"}, docs...),
			"10.128.0.0/24", "2001:db8::/64"},
		{"all that is not ours alone", []string{"2001::/16", "3fff::/16"},
			"192.0.2.0/24", "fd5b:11ce:5e00::/64"},
		{"everything", []string{"0.0.0.0/0", "::/0"}, "", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			for _, f := range []struct {
				free func([]Use) (netip.Prefix, error)
				want string
			}{{Free4, c.v4}, {Free6, c.v6}} {
				got, err := f.free(usesOf(c.uses...))
				if f.want == "" {
					if err == nil || !strings.Contains(err.Error(), "no subnet is free") {
						t.Errorf("%v, %v; want an error", got, err)
					}
					continue
				}
				if err != nil || got != netip.MustParsePrefix(f.want) {
					t.Errorf("%v, %v; want %s", got, err, f.want)
				}
			}
		})
	}
}

// TestAfter carries across bytes, and ends.
func TestAfter(t *testing.T) {
	for _, c := range []struct {
		from string
		bits int
		want string
	}{
		{"198.18.255.0", 24, "198.19.0.0"}, {"10.0.0.0", 16, "10.1.0.0"},
		{"192.0.2.128", 25, "192.0.3.0"},
		{"2001:db8:ff00::", 40, "2001:db9::"}, {"3fff::", 28, "3fff:10::"},
		{"255.255.255.0", 24, "invalid IP"},
	} {
		if got := after(netip.MustParseAddr(c.from), c.bits).String(); got != c.want {
			t.Errorf("after %s/%d comes %s, want %s", c.from, c.bits, got, c.want)
		}
	}
}

func TestEverywhere(t *testing.T) {
	for p, want := range map[string]bool{
		"0.0.0.0/0": true, "128.0.0.0/1": true, "64.0.0.0/2": false, "10.0.0.0/8": false,
		"::/0": true, "2000::/3": true, "2001::/16": false, "fe80::/64": true, "ff00::/8": true,
	} {
		if got := everywhere(netip.MustParsePrefix(p)); got != want {
			t.Errorf("%s: %t", p, got)
		}
	}
}

// TestInUse finds the loopback address of every machine, and not when its interface does not count.
func TestInUse(t *testing.T) {
	has := func(uses []Use) bool {
		for _, u := range uses {
			if u.By == "lo has 127.0.0.1/8" && u.Prefix == netip.MustParsePrefix("127.0.0.1/8") {
				return true
			}
		}
		return false
	}
	for except, want := range map[string]bool{"": true, "nosuch0": true, "lo": false} {
		uses, err := InUse(except)
		if err != nil {
			t.Fatal(err)
		}
		if has(uses) != want {
			t.Errorf("except %q: %v", except, uses)
		}
	}
	if _, ok := prefix(nil); ok {
		t.Error("a route without a destination has one")
	}
	if len(routers(netlink.Route{})) != 0 {
		t.Error("a route without a router has one")
	}
}

// TestLock tries to take it again through another descriptor, as another process would, while it is
// held and then.
func TestLock(t *testing.T) {
	unlock, err := Lock()
	if err != nil {
		t.Fatal(err)
	}
	other, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	if err := unix.Flock(int(other.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != unix.EWOULDBLOCK {
		t.Errorf("taken while it is held: %v", err)
	}
	if err := unlock(); err != nil {
		t.Fatal(err)
	}
	if err := unix.Flock(int(other.Fd()), unix.LOCK_EX); err != nil {
		t.Errorf("taken when it is free: %v", err)
	}
}
