package saved

import (
	"net/netip"
	"regexp"
	"strings"
)

// redactor takes out what tells whose machine it was. The same word becomes the same word each
// time, so that names of files and what is written of them still agree.
type redactor struct {
	hosts []string // names of the machine
	rules []rule
}

// rule replaces what an expression finds.
type rule struct {
	find *regexp.Regexp
	with string
}

// newRedactor returns one that takes out these names of the machine, too.
func newRedactor(hosts ...string) *redactor {
	r := &redactor{rules: []rule{
		// serial numbers and texts of the vital product data, by the words before them (lspci(8),
		// devlink-dev(8))
		{regexp.MustCompile(`(?i)((?:device )?serial[ _-]?number:? +)\S.*`), "${1}0"},
		{regexp.MustCompile(`(?i)(\[(?:SN|V[0-9A-Z]|Y[0-9A-Z])\][^:\n]*: *)\S.*`), "${1}0"},
		{regexp.MustCompile(`(?i)(asset tag[^:\n]*: *)\S.*`), "${1}0"},
		{regexp.MustCompile(`\b[A-Z]{2}[0-9]{4}[A-Z][0-9A-Z]{4,8}\b`), "MT0000X00000"},
		// UUIDs
		{regexp.MustCompile(`(?i)\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b`),
			"00000000-0000-0000-0000-000000000000"},
		// names of containers in cgroups: 64 digits
		{regexp.MustCompile(`\b[0-9a-f]{64}\b`), strings.Repeat("0", 64)},
		{regexp.MustCompile(`(?i)\b[0-9a-f]{32}\b`), strings.Repeat("0", 32)}, // UUIDs, too
		// hardware addresses of 6 to 20 bytes, and names of netdevs and devices made of them
		{regexp.MustCompile(`(?i)\b[0-9a-f]{2}(?:([:-])[0-9a-f]{2}){5,19}\b`),
			"00:00:00:00:00:00"},
		{regexp.MustCompile(`(?i)\b((?:en|wl|ww|ib|rdma|roce|usb)x)[0-9a-f]{12,16}\b`),
			"${1}000000000000"},
		// GUIDs as sysfs and as tools write them
		{regexp.MustCompile(`(?i)\b0x[0-9a-f]{12}(?:[0-9a-f]{4})?\b`), "0x0"},
		{regexp.MustCompile(`(?i)\b[0-9a-f]{4}(?::[0-9a-f]{4}){3}\b`), "0000:0000:0000:0000"},
		{regexp.MustCompile(`\b[0-9]{1,3}(?:\.[0-9]{1,3}){3}\b`), "0.0.0.0"},
	}}
	for _, name := range hosts {
		short, _, _ := strings.Cut(name, ".")
		for _, name := range []string{name, short} {
			if name != "" && name != "localhost" {
				r.hosts = append(r.hosts, name)
				r.rules = append(r.rules, rule{regexp.MustCompile(
					`(?i)(^|[^0-9a-z])` + regexp.QuoteMeta(name) + `($|[^0-9a-z])`), "${1}host${2}"})
			}
		}
	}
	return r
}

// addressLike matches what may be an IPv6 address.
var addressLike = regexp.MustCompile(`(?i)[0-9a-f:.]*:[0-9a-f:.]*:[0-9a-f:.]*`)

// twelveDigits matches a hardware address without colons, and counters that are as long.
var twelveDigits = regexp.MustCompile(`\b[0-9A-Fa-f]{12}\b`)

// redact returns text without what tells whose machine it was.
func (r *redactor) redact(text string) string {
	text = addressLike.ReplaceAllStringFunc(text, func(word string) string {
		if a, err := netip.ParseAddr(word); err == nil && !a.IsUnspecified() {
			return "::"
		}
		return word
	})
	text = twelveDigits.ReplaceAllStringFunc(text, func(word string) string {
		if strings.Trim(word, "0123456789") == "" {
			return word
		}
		return "000000000000"
	})
	for _, rule := range r.rules {
		text = rule.find.ReplaceAllString(text, rule.with)
	}
	return text
}
