"""The queries of the two papers, laid out as they are printed."""

PREFIXES = {
    "bd": "http://cei.usc.edu/Building.owl#",
    "ee": "http://cei.usc.edu/Equipment.owl#",
    "hvc": "http://cei.usc.edu/HVAC.owl#",
    "org": "http://cei.usc.edu/Organization.owl#",
    "evt": "http://cei.usc.edu/Event.owl#",
}

_OFFICE = """PATH {?e evt:hasSource ?src .
?src rdf:type ee:AirflowSensor .
?src bd:hasLocation ?loc .
?loc rdf:type bd:Office .
?loc bd:belongsTo org:EEDepartment"""

CHI = {
    1: """SELECT ?e.sensorID, ?e.flowrate
FILTER (?e.flowrate > 500)""",
    2: """SELECT AVG(?e.flowrate) > 500 AS avgrate
WINDOW (?e, sliding, 5min)""",
    3: """SELECT ?e1.sensorID
FILTER (?e1.flowrate > 500)
JOIN (?e2.sensorID = ?e1.sensorID)
JOIN (?e2.flowrate-?e1.flowrate > 50)
SEQ (?e1, ?e2)
WINDOW (?e1, ?e2, 5min)""",
    4: f"""SELECT ?e.sensorID
FILTER (?e.hvc:airflow > 500)
{_OFFICE}}}""",
    5: f"""SELECT ?e.sensorID
{_OFFICE} .
?e hvc:airflow ?rate .
hvc:GreenOfficeAirflow hvc:hasValue ?gaf .
FILTER (?rate > ?gaf)}}""",
    6: f"""SELECT AVG(?e.flowrate) > 500 AS avgrate
WINDOW (?e, sliding, 5min)
{_OFFICE}}}""",
    7: """SELECT ?e1.sensorID
FILTER (?e1.flowrate > 500)
JOIN (?e2.sensorID = ?e1.sensorID) JOIN (?e2.flowrate-?e1.flowrate > 50)

SEQ (?e1, ?e2)
WINDOW (?e1, ?e2, 5min)
PATH {?e1 evt:hasSource ?src1 .
?src1 rdf:type ee:AirflowSensor .
?src1 bd:hasLocation ?loc1 .
?loc1 rdf:type bd:MeetingRoom .
?e2 evt:hasSource ?src2 .
?src2 rdf:type ee:AirflowSensor .
?src2 bd:hasLocation ?loc2 .
?loc2 rdf:type bd:MeetingRoom }""",
}

EP = {
    1: """SELECT ?company WHERE

{ ?company hasStockPrice ?price1 }
SEQ { ?company hasStockPrice ?price2 }
SEQ { ?company hasStockPrice ?price3 }

FILTER ( ?price2 < ?price1 * 0.7 && ?price3 > ?price1 * 1.05

&& getDURATION() < "P30D"^^xsd:duration)""",
    2: """SELECT ?company ?ratingagency WHERE
{ ?company downratedby ?ratingagency}
OPTIONALSEQ
{ { ?company hasStockPrice ?price1 }
SEQ { ?company hasStockPrice ?price2 }}
FILTER (?price2 < ?price1 * 0.5)""",
    3: """SELECT ?company WHERE
{ ?company hasStockprice ?price1 }
SEQ { { ?company hasAcquired ?othercompany }
OPTIONALSEQ
{ ?company hasStockPrice ?price2 } }
FILTER ( ?price2 < ?price1 * 1.5 && !BOUND(?othercompany) &&
getDURATION() < "P15D"^^xsd:duration )""",
    4: """CONSTRUCT ?company downratedby ?ratingagency
WHERE
{ ?rating1 rater ?ratingagency ;
rated ?company ; score ?score1 }
SEQ { ?rating2 rater ?ratingagency ;
rated ?company ; score ?score2 }
FILTER ( ?score2 < ?score1 )""",
    5: """CONSTRUCT _:aaa :hasCount ?count . _:aaa :hasSum ?sum .
{ SELECT ?count AS ?prevcount + 1
         ?sum AS ?prevsum + ?price
  WHERE
  {{ ?point :hasCount ?prevcount . ?point :hasSum ?prevsum . }
   SEQ { :ACME :hasStockPrice ?price . }}
  EQUALSOPTIONAL
  {{ ?point :hasCount ?prevcount . ?point :hasSum ?prevsum . }
   SEQ { :ACME :hasStockPrice ?inbetween . }
   SEQ { :ACME :hasStockPrice ?price . }}
  FILTER ( !BOUND(?inbetween) && getDURATION() < "P10D"^^xsd:duration )}""",
    6: """SELECT ?sum / ?count AS ?average
WHERE {{ :ACME :hasStockPrice ?price . }
SEQ { ?point :hasCount ?prevcount . ?point :hasSum ?prevsum . }}
EQUALSOPTIONAL
{{ :ACME :hasStockPrice ?price . }
SEQ { :ACME :hasStockPrice ?inbetween . }
SEQ { ?point :hasCount ?prevcount . ?point :hasSum ?prevsum . }}
FILTER ( !BOUND(?inbetween) &&
getDURATION() > "P10D"^^xsd:duration )""",
}
