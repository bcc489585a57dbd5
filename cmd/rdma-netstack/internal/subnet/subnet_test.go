package subnet

import (
	"net/netip"
	"strings"
	"testing"
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
