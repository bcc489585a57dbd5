package card

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"flag"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/rdma-netstack/rdma-netstack/dv/mlx5"
	"github.com/rdma-netstack/rdma-netstack/internal/doctor"
	"github.com/rdma-netstack/rdma-netstack/simnic"
)

var reportFile = flag.String("report", "", "report of \"doctor --first-contact\" to compare")

// TestReport compares the report that -report names with the model of the same card, and names each
// difference.
func TestReport(t *testing.T) {
	if *reportFile == "" {
		return // TestModelsOwn has reports of the model's
	}
	f, err := os.Open(*reportFile)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	r, err := doctor.ReadRecord(f)
	if err != nil {
		t.Fatal(err)
	}
	c, err := cardOf(r)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%v, compared with the model of a %s", r.Versions, c.Title)
	model := contact(t, simnic.Config{Card: c.Name}).Record
	for i, check := range r.Checks {
		if i < len(model.Checks) {
			t.Logf("%s: %d us, the model %d us", check.Check, check.Usec, model.Checks[i].Usec)
		}
	}
	for _, diff := range differences(r, model) {
		t.Error(diff)
	}
}

// TestModelsOwn: reports of cards of the model, as text inside of an issue and as JSON, differ in
// nothing from those of the next run.
func TestModelsOwn(t *testing.T) {
	for _, name := range []string{"cx4lx", "cx5", "cx6dx", "cx9"} {
		report := contact(t, simnic.Config{Card: name, Seed: 1})
		model := contact(t, simnic.Config{Card: name, Seed: 2}).Record
		var text, object bytes.Buffer
		text.WriteString("**The report**\n```\n")
		if err := report.Text(&text); err != nil {
			t.Fatal(err)
		}
		text.WriteString("```\nthat is all\n")
		if err := report.JSON(&object); err != nil {
			t.Fatal(err)
		}
		for _, form := range []*bytes.Buffer{&text, &object} {
			r, err := doctor.ReadRecord(form)
			if err != nil {
				t.Fatal(err)
			}
			if c, err := cardOf(r); err != nil || c.Name != name {
				t.Errorf("%s: taken for %s, %v", name, c.Name, err)
			}
			if diff := differences(r, model); len(diff) > 0 {
				t.Errorf("%s: %s", name, strings.Join(diff, "\n"))
			}
		}
	}
}

// TestEditedReports edits a report of the model in one place each, and wants exactly that named.
func TestEditedReports(t *testing.T) {
	model := contact(t, simnic.Config{}).Record
	check := func(r *doctor.Record, name string) *doctor.CheckRecord {
		i := slices.IndexFunc(r.Checks, func(c doctor.CheckRecord) bool { return c.Check == name })
		return &r.Checks[i]
	}
	put := func(list []string, field mlx5.Field, at int, v uint64) {
		b, err := hex.DecodeString(list[0])
		if err != nil {
			t.Fatal(err)
		}
		field.Put(b[at:], v)
		list[0] = hex.EncodeToString(b)
	}
	for _, c := range []struct {
		want string
		edit func(r *doctor.Record)
	}{
		{"capability MaxTSO: 131072 on the card, 262144 in the model",
			func(r *doctor.Record) { r.Capabilities["MaxTSO"] = "131072" }},
		{"capability Pigeons: true on the card, the model has none",
			func(r *doctor.Record) { r.Capabilities["Pigeons"] = "true" }},
		{"capability DEVX: the card's report has none, the model's is refused: invalid argument",
			func(r *doctor.Record) { delete(r.Capabilities, "DEVX") }},
		{`check "compression": failed on the card, ok in the model`,
			func(r *doctor.Record) { check(r, "compression").State = doctor.Failed }},
		{`check "open": the card's report has none`,
			func(r *doctor.Record) { r.Checks = r.Checks[1:] }},
		{`check "magic": the model has none`, func(r *doctor.Record) {
			r.Checks = append(r.Checks, doctor.CheckRecord{Check: "magic"})
		}},
		{`check "first send": 0 WQEs on the card, 1 in the model`,
			func(r *doctor.Record) { check(r, "first send").WQEs = nil }},
		{`check "first send", WQE 1: ce is 0x1 on the card, 0x2 in the model`,
			func(r *doctor.Record) { put(check(r, "first send").WQEs, mlx5.CtrlCE, 0, 1) }},
		{`check "first send", CQE 1: 4 digits on the card, 128 in the model`,
			func(r *doctor.Record) { check(r, "first send").CQEs[0] = "beef" }},
		{`check "receive start", CQE 1: byte_cnt is 0x40 on the card, 0x3c in the model`,
			func(r *doctor.Record) {
				put(check(r, "receive start").CQEs, mlx5.CQEByteCount, 0, 0x40)
			}},
		{`check "send error recovery", CQE 1: vendor_err_synd is 0x52 on the card, 0x53 in the ` +
			`model`, func(r *doctor.Record) {
			put(check(r, "send error recovery").CQEs, mlx5.CQEVendorSyndrome, 0, 0x52)
		}},
	} {
		var r doctor.Record
		text, err := json.Marshal(model)
		if err == nil {
			err = json.Unmarshal(text, &r)
		}
		if err != nil {
			t.Fatal(err)
		}
		c.edit(&r)
		if diff := differences(&r, model); len(diff) != 1 || diff[0] != c.want {
			t.Errorf("%q\nwant %q", diff, c.want)
		}
	}
	stranger := doctor.Record{Capabilities: map[string]string{"PartID": "4099"}}
	if _, err := cardOf(&stranger); err == nil || !strings.Contains(err.Error(), `"4099"`) {
		t.Errorf("an unknown card: %v", err)
	}
}

// TestNotReports: what is no report, or half of one, is refused in one sentence.
func TestNotReports(t *testing.T) {
	report := contact(t, simnic.Config{})
	var text bytes.Buffer
	if err := report.Text(&text); err != nil {
		t.Fatal(err)
	}
	half := text.String()[:text.Len()-20]
	for from, want := range map[string]string{
		"":   "no \"doctor --first-contact\" wrote it",
		"{}": "it has no part for programs",
		half: "cut off",
		strings.Replace(text.String(), `{"format":1`, `{"format":2`, 1): "format 2, want 1",
	} {
		if _, err := doctor.ReadRecord(strings.NewReader(from)); err == nil ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("%.20q: %v, want %s", from, err, want)
		}
	}
	mac := strings.ReplaceAll(report.Results[0].Saw, ":", "")
	_, mac, _ = strings.Cut(mac, "our MAC ")
	record, err := json.Marshal(report.Record)
	if err != nil || len(mac) < 12 || strings.Contains(string(record), mac[:12]) ||
		strings.Contains(string(record), "GUID") {
		t.Errorf("the part for programs has an address of the card's: %v", err)
	}
}
