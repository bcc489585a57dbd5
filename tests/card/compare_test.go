package card

import (
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/rdma-netstack/rdma-netstack/dv/mlx5"
	"github.com/rdma-netstack/rdma-netstack/internal/doctor"
)

// differences names all in which a record of a card is not what the driver and the model make of
// the same checks.
func differences(card, model *doctor.Record) (diff []string) {
	add := func(format string, args ...any) { diff = append(diff, fmt.Sprintf(format, args...)) }
	for _, name := range keysOf(card.Capabilities, model.Capabilities) {
		has, known := card.Capabilities[name]
		want, expected := model.Capabilities[name]
		switch {
		case name == "Firmware" || has == want && known == expected:
		case !known:
			add("capability %s: the card's report has none, the model's is %s", name, want)
		case !expected:
			add("capability %s: %s on the card, the model has none", name, has)
		default:
			add("capability %s: %s on the card, %s in the model", name, has, want)
		}
	}
	for i := range model.Checks {
		want := &model.Checks[i]
		at := slices.IndexFunc(card.Checks, func(c doctor.CheckRecord) bool {
			return c.Check == want.Check
		})
		if at < 0 {
			add("check %q: the card's report has none", want.Check)
			continue
		}
		got := &card.Checks[at]
		if got.State != want.State {
			add("check %q: %s on the card, %s in the model", want.Check, got.State, want.State)
		}
		diff = append(diff, descriptorsDiffer(want.Check, "WQE", got.WQEs, want.WQEs,
			func(b []byte) string { return mlx5.DescribeSend(b).Text })...)
		diff = append(diff, descriptorsDiffer(want.Check, "CQE", got.CQEs, want.CQEs,
			func(b []byte) string {
				if len(b) != mlx5.CQESize {
					return ""
				}
				return (*mlx5.CQE)(b).String()
			})...)
	}
	for _, c := range card.Checks {
		if !slices.ContainsFunc(model.Checks, func(m doctor.CheckRecord) bool {
			return m.Check == c.Check
		}) {
			add("check %q: the model has none", c.Check)
		}
	}
	return diff
}

// keysOf returns the keys of both, sorted.
func keysOf(a, b map[string]string) []string {
	all := maps.Clone(a)
	if all == nil {
		all = map[string]string{}
	}
	maps.Copy(all, b)
	return slices.Sorted(maps.Keys(all))
}

// ownOf lists fields that differ from run to run: numbers of objects, addresses, indices, clocks
// and what is computed of them.
const ownOf = " wqe_index qpn lkey addr timestamp wqe_counter flow_tag rss_hash signature owner " +
	"rx_drop_counter "

// descriptorsDiffer names the fields in which descriptors differ, as the driver reads them.
func descriptorsDiffer(check, kind string, card, model []string,
	read func([]byte) string) (diff []string) {
	if len(card) != len(model) {
		return []string{fmt.Sprintf("check %q: %d %ss on the card, %d in the model", check,
			len(card), kind, len(model))}
	}
	for i := range card {
		what := fmt.Sprintf("check %q, %s %d", check, kind, i+1)
		got, err := hex.DecodeString(card[i])
		want, wrong := hex.DecodeString(model[i])
		if err != nil || wrong != nil || len(got) != len(want) {
			diff = append(diff, fmt.Sprintf("%s: %d digits on the card, %d in the model", what,
				len(card[i]), len(model[i])))
			continue
		}
		g, w := fieldsOf(read(got)), fieldsOf(read(want))
		for _, name := range keysOf(g, w) {
			if g[name] != w[name] && !strings.Contains(ownOf, " "+name+" ") {
				diff = append(diff, fmt.Sprintf("%s: %s is %s on the card, %s in the model", what,
					name, orZero(g[name]), orZero(w[name])))
			}
		}
	}
	return diff
}

// fieldsOf returns the fields in a description, "name=value" each, and the words before them.
func fieldsOf(text string) map[string]string {
	fields, words := map[string]string{}, []string(nil)
	for word := range strings.FieldsSeq(text) {
		if name, value, is := strings.Cut(word, "="); is {
			fields[name] = value
		} else {
			words = append(words, word)
		}
	}
	fields["kind"] = strings.Join(words, " ")
	return fields
}

// orZero returns the value of a field: those that are zero are left out.
func orZero(value string) string {
	if value == "" {
		return "0"
	}
	return value
}
