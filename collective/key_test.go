package collective

import (
	"reflect"
	"testing"

	"github.com/fisterra-hpc/fisterra/collective/plan"
	"github.com/fisterra-hpc/fisterra/internal/kernel"
)

// same looks at every field: with one that it forgot, a call would be done by the plan of another.
func TestSameKey(t *testing.T) {
	differ := map[string]key{
		"kind": {kind: plan.Bcast}, "inPlace": {inPlace: true}, "late": {late: true}, "here": {here: true}, "root": {root: 1},
		"op": {op: Max}, "count": {count: 1}, "typ": {typ: elemType{kind: kernel.Float64, size: 8}}, "hash": {hash: 1},
	}
	for i := range reflect.TypeFor[key]().NumField() {
		name := reflect.TypeFor[key]().Field(i).Name
		k, there := differ[name]
		if !there {
			t.Errorf("field %s is not tried", name)
			continue
		}
		var zero key
		if k.same(&zero) || k == zero {
			t.Errorf("%+v is taken for the same as a key whose %s differs", k, name)
		}
		if again := k; !k.same(&again) {
			t.Errorf("%+v is not the same as itself", k)
		}
	}
}
