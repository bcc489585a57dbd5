// Package fields names the numbers of the structs that count.
package fields

import (
	"reflect"
	"strings"
	"unicode"
)

// Field describes one number of a struct of counters.
type Field struct {
	Name  string
	Value uint64
}

// Of lists the numbers and truths (0, 1) of a struct, those of structs in it with their field's
// name in front. Names are as [Snake] writes them.
func Of(counters any) []Field { return flatten("", reflect.ValueOf(counters)) }

func flatten(under string, v reflect.Value) (all []Field) {
	for i := range v.NumField() {
		name := under + Snake(v.Type().Field(i).Name)
		switch f := v.Field(i); f.Kind() {
		case reflect.Uint64:
			all = append(all, Field{name, f.Uint()})
		case reflect.Bool:
			n := uint64(0)
			if f.Bool() {
				n = 1
			}
			all = append(all, Field{name, n})
		case reflect.Struct:
			all = append(all, flatten(name+"_", f)...)
		}
	}
	return all
}

// Snake writes a Go name as Prometheus does: TCPFailedDials is tcp_failed_dials, NICs nics.
func Snake(name string) string {
	letters := []rune(name)
	var b strings.Builder
	for i, l := range letters {
		plural := i+2 == len(letters) && letters[i+1] == 's'
		begins := i > 0 && unicode.IsUpper(l) && (unicode.IsLower(letters[i-1]) ||
			i+1 < len(letters) && unicode.IsLower(letters[i+1]) && !plural)
		if begins {
			b.WriteByte('_')
		}
		b.WriteRune(unicode.ToLower(l))
	}
	return b.String()
}
