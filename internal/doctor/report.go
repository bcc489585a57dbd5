package doctor

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
)

// State is how a check ended.
type State string

// The states of a check.
const (
	OK      State = "ok"
	Failed  State = "failed"
	Note    State = "note"    // worth knowing, and no fault
	Skipped State = "skipped" // it does not apply, or could not be tried; Saw says why
)

// Result holds what one check found.
type Result struct {
	Check string `json:"check"`
	State State  `json:"state"`
	// Saw says what was seen, in one sentence.
	Saw string `json:"saw"`
	// Do says what to do about a failure.
	Do string `json:"do,omitempty"`
	// Facts are details for readers without access to the machine.
	Facts []Fact `json:"facts,omitempty"`
}

// Fact is one detail: a number, or the bytes of a descriptor.
type Fact struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

// Report holds the results of all checks of a device.
type Report struct {
	Title  string `json:"title"`
	Device string `json:"device"`
	// Facts are about the machine.
	Facts   []Fact   `json:"facts,omitempty"`
	Results []Result `json:"results"`
	// Record is for programs, nil: there is none.
	Record *Record `json:"record,omitempty"`
}

// Count returns how many checks ended in this state.
func (r *Report) Count(s State) (n int) {
	for i := range r.Results {
		if r.Results[i].State == s {
			n++
		}
	}
	return n
}

// JSON writes the report as one object.
func (r *Report) JSON(w io.Writer) error { return json.NewEncoder(w).Encode(r) }

// Width of the columns before what was seen, in letters.
const (
	stateWidth = 9
	checkWidth = 22
)

// Text writes the report for people: one line per check, what to do about a failure and the facts
// below it.
func (r *Report) Text(w io.Writer) error {
	b := &strings.Builder{}
	fmt.Fprintf(b, "%s: %s\n", r.Title, r.Device)
	for _, f := range r.Facts {
		fmt.Fprintf(b, "  %-*s%s\n", stateWidth+checkWidth-2, f.Name, f.Value)
	}
	for i := range r.Results {
		r.Results[i].writeText(b)
	}
	fmt.Fprintf(b, "%d checks: %d ok, %d failed, %d skipped\n", len(r.Results), r.Count(OK),
		r.Count(Failed), r.Count(Skipped))
	if r.Record != nil {
		r.Record.writeTo(b)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// Findings writes one line for each check that failed or has a note, with what to do, and how many
// checks there were.
func (r *Report) Findings(w io.Writer) error {
	b := &strings.Builder{}
	for _, f := range r.Results {
		if f.State == Failed || f.State == Note {
			fmt.Fprintf(b, "%-*s%s: %s: %s\n", stateWidth, f.State, f.Check, f.Saw, f.Do)
		}
	}
	about := strings.TrimSpace(r.Title + " " + r.Device)
	fmt.Fprintf(b, "%s: %d checks, %d failed, %d notes\n", about, len(r.Results),
		r.Count(Failed), r.Count(Note))
	_, err := io.WriteString(w, b.String())
	return err
}

func (r *Result) writeText(b *strings.Builder) {
	fmt.Fprintf(b, "%-*s%-*s%s\n", stateWidth, r.State, checkWidth, r.Check, r.Saw)
	if r.State == Failed && r.Do != "" {
		fmt.Fprintf(b, "%*swhat to do: %s\n", stateWidth+checkWidth, "", r.Do)
	}
	for _, f := range r.Facts {
		fmt.Fprintf(b, "%*s%s: %s\n", stateWidth+2, "", f.Name, f.Value)
	}
}
