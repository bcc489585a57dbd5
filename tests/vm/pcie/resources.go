package pcie

import (
	"maps"
	"reflect"
)

// Resources counts what the driver has created, allocated or given and not destroyed, freed or
// taken back, by kind; kinds of which there is nothing are left out. After the driver has been
// removed it is empty. Safe from any goroutine.
func (f *Function) Resources() map[string]int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.resources()
}

// Abandoned is what the driver had not destroyed or freed at its last TEARDOWN_HCA, which destroys
// it, as Resources counts it; without pages, which the driver takes back after that. Safe from any
// goroutine.
func (f *Function) Abandoned() map[string]int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return maps.Clone(f.abandoned)
}

func (f *Function) resources() map[string]int {
	counts := map[string]int{pageCount: len(f.given)}
	objects := reflect.ValueOf(&f.objects).Elem()
	for i := range objects.NumField() {
		if o := objects.Field(i); o.Kind() == reflect.Map || o.Kind() == reflect.Slice {
			counts[objects.Type().Field(i).Name] = o.Len()
		}
	}
	for k, name := range numberNames {
		counts[name] = len(f.numbers[k].used)
	}
	for _, t := range f.objects.tables {
		counts["groups"] += len(t.groups)
		counts["entries"] += len(t.entries)
	}
	f.eqs.mu.RLock()
	counts["eqs"] = len(f.eqs.m)
	f.eqs.mu.RUnlock()
	maps.DeleteFunc(counts, func(_ string, n int) bool { return n == 0 })
	return counts
}

// pageCount is the kind of the pages given, in Resources.
const pageCount = "pages"

// numberNames are the names of the spaces of numbers, in Resources.
var numberNames = [numKinds]string{
	kindUAR: "UAR pages", kindPD: "protection domains", kindTransportDomain: "transport domains",
	kindXRCD: "XRC domains", kindCounter: "queue counter sets", kindTIS: "TIS numbers",
	kindQueue: "queue numbers",
}
