package doctor

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
)

// Record holds what a first contact saw of a card, for programs: what follows from the card and
// its kernel, without addresses that are its own.
type Record struct {
	Format int `json:"format"` // RecordFormat
	// Versions has the kernel's, the driver's and others, by their names in the report.
	Versions     map[string]string `json:"versions"`
	Capabilities map[string]string `json:"capabilities"` // by the names of uverbs.DeviceCaps
	Checks       []CheckRecord     `json:"checks"`
}

// RecordFormat numbers the format that this program writes, and the only one that it reads.
const RecordFormat = 1

// CheckRecord describes one check of a Record.
type CheckRecord struct {
	Check string `json:"check"`
	State State  `json:"state"`
	Usec  int64  `json:"usec"` // how long it took
	// WQEs and CQEs are descriptors in hexadecimal digits, in the order of the report.
	WQEs []string `json:"wqes,omitempty"`
	CQEs []string `json:"cqes,omitempty"`
}

// Lines around a record in a report for people.
const (
	recordBegin = "--- for programs: go test ./tests/card -report FILE reads this ---"
	recordEnd   = "--- end ---"
)

// writeTo writes the record with the lines around it.
func (r *Record) writeTo(b *strings.Builder) {
	text, err := json.Marshal(r)
	if err != nil { // strings and numbers alone
		text = []byte(err.Error())
	}
	fmt.Fprintf(b, "%s\n%s\n%s\n", recordBegin, text, recordEnd)
}

// ReadRecord finds the record in a report of a first contact: one for people, or the object that
// --json prints. It may have other text around it, as an issue has.
func ReadRecord(from io.Reader) (*Record, error) {
	text, err := io.ReadAll(from)
	if err != nil {
		return nil, fmt.Errorf("read a report: %w", err)
	}
	var r Record
	if _, rest, found := strings.Cut(string(text), recordBegin); found {
		part, _, whole := strings.Cut(rest, recordEnd)
		if !whole {
			return nil, fmt.Errorf("read a report: no line %q: it is cut off", recordEnd)
		}
		err = json.Unmarshal([]byte(part), &r)
	} else {
		var whole Report
		if err = json.Unmarshal(text, &whole); err == nil {
			if whole.Record == nil {
				err = errors.New("it has no part for programs")
			} else {
				r = *whole.Record
			}
		}
	}
	if err == nil && r.Format != RecordFormat {
		err = fmt.Errorf("format %d, want %d", r.Format, RecordFormat)
	}
	if err != nil {
		return nil, fmt.Errorf("read a report: no \"doctor --first-contact\" wrote it: %w", err)
	}
	return &r, nil
}
