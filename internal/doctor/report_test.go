package doctor_test

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/rdma-netstack/rdma-netstack/internal/doctor"
)

func sample() doctor.Report {
	return doctor.Report{Title: "first contact", Device: "mlx5_0",
		Facts: []doctor.Fact{{Name: "kernel", Value: "6.12"}}, Results: []doctor.Result{
			{Check: "open", State: doctor.OK, Saw: "it opened", Do: "not said of what is ok",
				Facts: []doctor.Fact{{Name: "firmware", Value: "22.43.2026"}}},
			{Check: "receive", State: doctor.Failed, Saw: "no frame in 2 s",
				Do: "look at the cable"},
			{Check: "cable", State: doctor.Skipped, Saw: "nobody was asked to pull it"},
		}}
}

func TestText(t *testing.T) {
	const want = `first contact: mlx5_0
  kernel                       6.12
ok       open                  it opened
           firmware: 22.43.2026
failed   receive               no frame in 2 s
                               what to do: look at the cable
skipped  cable                 nobody was asked to pull it
3 checks: 1 ok, 1 failed, 1 skipped
`
	var b strings.Builder
	r := sample()
	if err := r.Text(&b); err != nil || b.String() != want {
		t.Errorf("%v, got\n%s", err, b.String())
	}
}

func TestJSON(t *testing.T) {
	var b strings.Builder
	r := sample()
	if err := r.JSON(&b); err != nil {
		t.Fatal(err)
	}
	var back struct {
		Device  string
		Results []map[string]any
	}
	if err := json.Unmarshal([]byte(b.String()), &back); err != nil {
		t.Fatal(err)
	}
	if back.Device != "mlx5_0" || len(back.Results) != 3 ||
		back.Results[1]["state"] != "failed" || back.Results[1]["do"] != "look at the cable" {
		t.Errorf("got %s", b.String())
	}
}

func TestFindings(t *testing.T) {
	const want = `failed   receive: no frame in 2 s: look at the cable
first contact mlx5_0: 3 checks, 1 failed, 0 notes
`
	var b strings.Builder
	r := sample()
	if err := r.Findings(&b); err != nil || b.String() != want {
		t.Errorf("%v, got\n%s", err, b.String())
	}
}

// full takes nothing.
type full struct{}

var errFull = errors.New("no space left")

func (full) Write([]byte) (int, error) { return 0, errFull }

func TestNobodyGetsIt(t *testing.T) {
	r := sample()
	if err := r.Text(full{}); !errors.Is(err, errFull) {
		t.Errorf("text: %v", err)
	}
	if err := r.JSON(full{}); !errors.Is(err, errFull) {
		t.Errorf("JSON: %v", err)
	}
}
