package main

import (
	"encoding/json"
	"fmt"
	"math/big"
	"sort"

	"github.com/hashicorp/terraform-plugin-go/tftypes"
)

// fromValue converts a value of a plan or a state to the values of JSON; null and unknown values to nil.
func fromValue(value tftypes.Value) (any, error) {
	if value.IsNull() || !value.IsKnown() {
		return nil, nil
	}
	switch {
	case value.Type().Is(tftypes.String):
		var text string
		err := value.As(&text)
		return text, err
	case value.Type().Is(tftypes.Bool):
		var flag bool
		err := value.As(&flag)
		return flag, err
	case value.Type().Is(tftypes.Number):
		var number big.Float
		err := value.As(&number)
		return json.Number(number.Text('g', -1)), err
	case value.Type().Is(tftypes.List{}), value.Type().Is(tftypes.Set{}), value.Type().Is(tftypes.Tuple{}):
		var elements []tftypes.Value
		if err := value.As(&elements); err != nil {
			return nil, err
		}
		items := make([]any, len(elements))
		for i, element := range elements {
			var err error
			if items[i], err = fromValue(element); err != nil {
				return nil, err
			}
		}
		return items, nil
	}
	var elements map[string]tftypes.Value
	if err := value.As(&elements); err != nil {
		return nil, err
	}
	items := make(map[string]any, len(elements))
	for name, element := range elements {
		item, err := fromValue(element)
		if err != nil {
			return nil, err
		}
		items[name] = item
	}
	return items, nil
}

// toValue converts a value of JSON to a type of the schema.
func toValue(kind tftypes.Type, item any) (tftypes.Value, error) {
	if kind.Is(tftypes.DynamicPseudoType) {
		kind = typeOf(item)
	}
	if item == nil {
		return tftypes.NewValue(kind, nil), nil
	}
	switch typed := item.(type) {
	case json.Number:
		number, _, err := big.ParseFloat(typed.String(), 10, 512, big.ToNearestEven)
		if err != nil || !kind.Is(tftypes.Number) {
			return tftypes.Value{}, fmt.Errorf("number %s where %s is expected", typed, kind)
		}
		return tftypes.NewValue(kind, number), nil
	case []any:
		elements := make([]tftypes.Value, len(typed))
		for i, inner := range typed {
			var err error
			if elements[i], err = toValue(elementType(kind, i, ""), inner); err != nil {
				return tftypes.Value{}, err
			}
		}
		return validated(kind, elements)
	case map[string]any:
		elements := make(map[string]tftypes.Value, len(typed))
		for name, inner := range typed {
			var err error
			if elements[name], err = toValue(elementType(kind, 0, name), inner); err != nil {
				return tftypes.Value{}, err
			}
		}
		return validated(kind, elements)
	}
	return validated(kind, item)
}

// validated returns an error where NewValue would panic.
func validated(kind tftypes.Type, content any) (tftypes.Value, error) {
	if err := tftypes.ValidateValue(kind, content); err != nil {
		return tftypes.Value{}, err
	}
	return tftypes.NewValue(kind, content), nil
}

func elementType(kind tftypes.Type, index int, name string) tftypes.Type {
	switch typed := kind.(type) {
	case tftypes.List:
		return typed.ElementType
	case tftypes.Set:
		return typed.ElementType
	case tftypes.Map:
		return typed.ElementType
	case tftypes.Tuple:
		return typed.ElementTypes[index]
	case tftypes.Object:
		return typed.AttributeTypes[name]
	}
	return tftypes.String
}

// typeOf returns the type of a value of JSON where the schema leaves it open.
func typeOf(item any) tftypes.Type {
	switch typed := item.(type) {
	case bool:
		return tftypes.Bool
	case json.Number:
		return tftypes.Number
	case []any:
		kinds := make([]tftypes.Type, len(typed))
		for i, inner := range typed {
			kinds[i] = typeOf(inner)
		}
		return tftypes.Tuple{ElementTypes: kinds}
	case map[string]any:
		kinds := make(map[string]tftypes.Type, len(typed))
		for name, inner := range typed {
			kinds[name] = typeOf(inner)
		}
		return tftypes.Object{AttributeTypes: kinds}
	}
	return tftypes.String
}

// canonical returns a text that is the same for equal values; sets are compared as sets.
func canonical(item any, isSet bool) string {
	switch typed := item.(type) {
	case json.Number:
		if number, ok := new(big.Rat).SetString(typed.String()); ok {
			return number.RatString()
		}
	case []any:
		texts := make([]string, len(typed))
		for i, inner := range typed {
			texts[i] = canonical(inner, isSet)
		}
		if isSet {
			sort.Strings(texts)
		}
		return fmt.Sprintf("%q", texts)
	case map[string]any:
		texts := make([]string, 0, len(typed))
		for name, inner := range typed {
			texts = append(texts, fmt.Sprintf("%q:%s", name, canonical(inner, isSet)))
		}
		sort.Strings(texts)
		return fmt.Sprint(texts)
	}
	return fmt.Sprintf("%T:%v", item, item)
}
