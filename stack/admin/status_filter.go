package admin

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/rdma-netstack/rdma-netstack/stack"
)

// FilterView holds what the status page shows of the packet filter.
type FilterView struct {
	// Denied and Allowed count the prefixes that are denied or allowed ahead of the list, Rules the
	// rules of the list.
	Denied  int `json:"denied"`
	Allowed int `json:"allowed"`
	Rules   int `json:"rules"`
	// Shown lists the prefixes, then the rules of each chain and its policy, each with the packets
	// it has decided: of prefixes and of rules those with the most, 50 at most.
	Shown []FilterRow `json:"shown"`
}

// FilterRow describes a prefix, a rule or a policy.
type FilterRow struct {
	Name    string `json:"name"` // 192.0.2.0/24, input rule 3 or input policy
	Verdict string `json:"verdict"`
	Packets uint64 `json:"packets"`
	// About holds the text of a rule, and until when a prefix counts; "" through [ReadOnly].
	About string `json:"about,omitempty"`
}

// viewFilter returns what is shown of a filter; nil: there is nothing in it.
func viewFilter(s stack.FilterStatus) *FilterView {
	v := &FilterView{}
	var rows []FilterRow
	for _, e := range s.Entries {
		row := FilterRow{Name: e.Prefix.String(), Verdict: e.Verdict, Packets: e.Packets}
		if !e.Until.IsZero() {
			row.About = "until " + e.Until.UTC().Format(time.DateTime)
		}
		if rows = append(rows, row); e.Verdict == "deny" {
			v.Denied++
		} else {
			v.Allowed++
		}
	}
	v.Shown = withMostPackets(rows)
	rows = nil
	for _, c := range s.Chains {
		v.Rules += len(c.Rules)
		for _, r := range c.Rules {
			row := FilterRow{Name: fmt.Sprintf("%s rule %d", c.Name, r.Number), Verdict: "accept",
				Packets: r.Packets, About: r.Text}
			if r.Drops {
				row.Verdict = "drop"
			}
			rows = append(rows, row)
		}
		rows = append(rows, FilterRow{Name: c.Name + " policy", Verdict: c.Policy,
			Packets: c.Packets})
	}
	if v.Shown = append(v.Shown, withMostPackets(rows)...); len(v.Shown) == 0 {
		return nil
	}
	return v
}

// withMostPackets leaves the rows with the most packets, in their order.
func withMostPackets(rows []FilterRow) []FilterRow {
	if len(rows) <= shownSockets {
		return rows
	}
	packets := make([]uint64, len(rows))
	for i, r := range rows {
		packets[i] = r.Packets
	}
	slices.SortFunc(packets, func(a, b uint64) int { return cmp.Compare(b, a) })
	least, left := packets[shownSockets-1], shownSockets
	rows = slices.DeleteFunc(rows, func(r FilterRow) bool { return r.Packets < least })
	for i := range rows { // of those with just as many the first ones stay
		if rows[i].Packets > least {
			left--
		}
	}
	return slices.DeleteFunc(rows, func(r FilterRow) bool {
		if r.Packets == least {
			left--
			return left < 0
		}
		return false
	})
}

// withoutRules returns a view that does not tell what gets through the filter.
func (v *FilterView) withoutRules() *FilterView {
	if v == nil {
		return nil
	}
	public := *v
	public.Shown = nil
	for _, r := range v.Shown {
		if r.Verdict != "allow" {
			r.About = ""
			public.Shown = append(public.Shown, r)
		}
	}
	return &public
}

// readOnlyKey marks the requests that came through ReadOnly.
type readOnlyKey struct{}

// markReadOnly returns the request with the mark.
func markReadOnly(r *http.Request) *http.Request {
	return r.WithContext(context.WithValue(r.Context(), readOnlyKey{}, true))
}

// statusFor returns the last reading, as far as whoever has made a request may know it.
func (h *handler) statusFor(r *http.Request) Status {
	s := h.currentStatus()
	if r.Context().Value(readOnlyKey{}) != nil {
		s.Filter = s.Filter.withoutRules()
	}
	return s
}
