package subnet

import (
	"fmt"
	"net/netip"
	"slices"
)

// Use describes a part of the address space that the machine uses.
type Use struct {
	Prefix netip.Prefix // of an interface's address: that address, with its length
	By     string       // who has it, as "eth0 has 192.0.2.7/24"
}

// pool describes a prefix that is divided into subnets of one length: the first subnet of each
// step, which is a prefix length too.
type pool struct {
	from       netip.Prefix
	step, bits int
}

// Free4 returns the first IPv4 subnet, of 24 bits, that no use overlaps, of TEST-NET-1 to 3 (RFC
// 5737), the benchmark prefix (RFC 2544) and private networks (RFC 1918), in this order: private
// ones may exist behind a default route.
func Free4(uses []Use) (netip.Prefix, error) {
	return free(uses, []pool{
		{netip.MustParsePrefix("192.0.2.0/24"), 24, 24},
		{netip.MustParsePrefix("198.51.100.0/24"), 24, 24},
		{netip.MustParsePrefix("203.0.113.0/24"), 24, 24},
		{netip.MustParsePrefix("198.18.0.0/15"), 24, 24},
		{netip.MustParsePrefix("172.16.0.0/12"), 16, 24},
		{netip.MustParsePrefix("192.168.0.0/16"), 24, 24},
		{netip.MustParsePrefix("10.0.0.0/8"), 16, 24},
	})
}

// Free6 returns the first IPv6 subnet, of 64 bits, that no use overlaps, of the documentation
// prefixes (RFC 3849, RFC 9637), the benchmark prefix (RFC 5180) and a local one (RFC 4193) with a
// global ID of this program.
func Free6(uses []Use) (netip.Prefix, error) {
	return free(uses, []pool{
		{netip.MustParsePrefix("2001:db8::/32"), 40, 64},
		{netip.MustParsePrefix("3fff::/20"), 28, 64},
		{netip.MustParsePrefix("2001:2::/48"), 56, 64},
		{netip.MustParsePrefix("fd5b:11ce:5e00::/48"), 56, 64},
	})
}

func free(uses []Use, pools []pool) (netip.Prefix, error) {
	for _, p := range pools {
		for at := p.from.Addr(); p.from.Contains(at); at = after(at, p.step) {
			s := netip.PrefixFrom(at, p.bits)
			if !slices.ContainsFunc(uses, func(u Use) bool { return u.Prefix.Overlaps(s) }) {
				return s, nil
			}
		}
	}
	return netip.Prefix{}, fmt.Errorf("no subnet is free: this machine uses all of %s to %s",
		pools[0].from, pools[len(pools)-1].from)
}

// after returns the first address of the next prefix of that length; not valid after the last one.
func after(a netip.Addr, bits int) netip.Addr {
	b := a.AsSlice()
	for i, add := (bits-1)/8, 1<<(7-(bits-1)%8); add != 0; i-- {
		if i < 0 {
			return netip.Addr{}
		}
		add += int(b[i])
		b[i], add = byte(add), add>>8
	}
	next, _ := netip.AddrFromSlice(b)
	return next
}
