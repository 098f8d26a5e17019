package main

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	"github.com/hashicorp/terraform-plugin-framework/attr"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema/booldefault"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema/int64default"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema/int64planmodifier"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema/listplanmodifier"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema/mapdefault"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema/planmodifier"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema/setdefault"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema/stringdefault"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema/stringplanmodifier"
	"github.com/hashicorp/terraform-plugin-framework/types"
)

// resources.json declares every resource: its attributes, and the requests that create, read, change and delete
// it. The tests of the server compare it with the server's OpenAPI documents.
//
//go:embed resources.json
var content []byte

var declarations = parseDeclarations()

type declaration struct {
	Help       string               `json:"help"`
	Key        []string             `json:"key"`
	Attributes map[string]attribute `json:"attributes"`
	Create     operation            `json:"create"`
	Activate   *operation           `json:"activate"`
	Read       reading              `json:"read"`
	Update     *operation           `json:"update"`
	Delete     operation            `json:"delete"`
}

type attribute struct {
	Type      string          `json:"type"`
	Help      string          `json:"help"`
	Required  bool            `json:"required"`
	Replace   bool            `json:"replace"`
	Computed  bool            `json:"computed"`
	Sensitive bool            `json:"sensitive"`
	WriteOnly bool            `json:"write_only"`
	Unmanaged bool            `json:"unmanaged_if_null"`
	Default   json.RawMessage `json:"default"`
}

type operation struct {
	Method string            `json:"method"`
	Path   string            `json:"path"`
	Query  map[string]string `json:"query"`
	Body   map[string]field  `json:"body"`
}

// field is the source of a field of a body: an attribute, or a rule.
type field struct {
	attribute   string
	Constant    json.RawMessage   `json:"constant"`
	RemovedKeys string            `json:"removed_keys"`
	WithRemoved string            `json:"with_removed"`
	AllRemoved  string            `json:"all_removed"`
	Object      map[string]string `json:"object"`
	With        string            `json:"with"`
	IfChanged   []string          `json:"if_changed"`
}

type reading struct {
	Path    string            `json:"path"`
	Query   map[string]string `json:"query"`
	FirstOf string            `json:"first_of"`
	Values  map[string]source `json:"values"`
	// AbsentIf has values of fields that mean that the object does not exist; one suffices.
	AbsentIf map[string]any `json:"absent_if"`
	// AbsentUnless has the values of fields that the object must have.
	AbsentUnless map[string]any `json:"absent_unless"`
}

// source is the field of an answer that an attribute is read from, or a rule.
type source struct {
	field        string
	Declared     string `json:"declared"`
	DirectLabels string `json:"direct_labels"`
	Stored       string `json:"equivalent_while_same"`
	Field        string `json:"field"`
}

func (f *field) UnmarshalJSON(content []byte) error {
	type plain field
	if json.Unmarshal(content, &f.attribute) == nil {
		return nil
	}
	return json.Unmarshal(content, (*plain)(f))
}

func (s *source) UnmarshalJSON(content []byte) error {
	type plain source
	if json.Unmarshal(content, &s.field) == nil {
		return nil
	}
	err := json.Unmarshal(content, (*plain)(s))
	s.field = s.Declared + s.DirectLabels + s.Field
	return err
}

func parseDeclarations() map[string]declaration {
	parsed := map[string]declaration{}
	if err := json.Unmarshal(content, &parsed); err != nil {
		panic(fmt.Sprintf("resources.json: %s", err))
	}
	return parsed
}

func declaredNames() []string { return slices.Sorted(maps.Keys(declarations)) }

func (d declaration) schema() schema.Schema {
	attributes := map[string]schema.Attribute{}
	for name, declared := range d.Attributes {
		attributes[name] = declared.schema()
	}
	return schema.Schema{Description: d.Help, Attributes: attributes}
}

func (a attribute) schema() schema.Attribute {
	hasDefault := a.Default != nil
	optional := !a.Required && !a.Computed
	computed := a.Computed || hasDefault
	switch a.Type {
	case "string":
		shown := schema.StringAttribute{Description: a.Help, Required: a.Required, Optional: optional, Computed: computed, Sensitive: a.Sensitive, WriteOnly: a.WriteOnly}
		if hasDefault {
			shown.Default = stringdefault.StaticString(decoded[string](a.Default))
		}
		if a.Replace {
			shown.PlanModifiers = []planmodifier.String{stringplanmodifier.RequiresReplace()}
		}
		return shown
	case "bool":
		shown := schema.BoolAttribute{Description: a.Help, Required: a.Required, Optional: optional, Computed: computed}
		if hasDefault {
			shown.Default = booldefault.StaticBool(decoded[bool](a.Default))
		}
		return shown
	case "int":
		shown := schema.Int64Attribute{Description: a.Help, Required: a.Required, Optional: optional, Computed: computed}
		if hasDefault {
			shown.Default = int64default.StaticInt64(decoded[int64](a.Default))
		}
		if a.Replace {
			shown.PlanModifiers = []planmodifier.Int64{int64planmodifier.RequiresReplace()}
		}
		return shown
	case "list(string)":
		shown := schema.ListAttribute{Description: a.Help, ElementType: types.StringType, Required: a.Required, Optional: optional, Computed: computed}
		if a.Replace {
			shown.PlanModifiers = []planmodifier.List{listplanmodifier.RequiresReplace()}
		}
		return shown
	case "set(string)":
		shown := schema.SetAttribute{Description: a.Help, ElementType: types.StringType, Required: a.Required, Optional: optional, Computed: computed}
		if hasDefault {
			var items []attr.Value
			for _, text := range decoded[[]string](a.Default) {
				items = append(items, types.StringValue(text))
			}
			shown.Default = setdefault.StaticValue(types.SetValueMust(types.StringType, items))
		}
		return shown
	case "map(string)":
		return emptyMap(a, types.StringType, optional, computed)
	case "map(set(string))":
		return emptyMap(a, types.SetType{ElemType: types.StringType}, optional, computed)
	case "dynamic":
		return schema.DynamicAttribute{Description: a.Help, Required: a.Required, Optional: optional, Computed: computed}
	}
	panic("resources.json: unknown type " + a.Type)
}

func emptyMap(a attribute, element attr.Type, optional, computed bool) schema.Attribute {
	return schema.MapAttribute{
		Description: a.Help, ElementType: element, Required: a.Required, Optional: optional, Computed: computed,
		Default: mapdefault.StaticValue(types.MapValueMust(element, map[string]attr.Value{})),
	}
}

func decoded[T any](content json.RawMessage) T {
	var value T
	if err := json.Unmarshal(content, &value); err != nil {
		panic(fmt.Sprintf("resources.json: %s", err))
	}
	return value
}
